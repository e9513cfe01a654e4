"""The outcomes of requests that a state remembers, and how it forgets them.

A change set may decide thousands of requests per second and remembers their outcomes for minutes, so an outcome is kept
small: that of a request that was applied is a few bytes, which Python's garbage collector does not visit.
"""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from struct import Struct, error
from typing import TypeAlias

from rebaser_core.commit import Decision, Outcome
from rebaser_core.ids import RequestId
from rebaser_core.record import record

# How much longer an outcome is kept if the request was sent again from the dead letters. This keeps a dead letter from
# being applied twice if it is sent again more than once.
REDRIVE_MEMORY_MS = 31 * 24 * 3600 * 1000

_SUCCESS = Outcome.SUCCESS
_NUMBERS = Struct("<4q")  # commit, time, sequence of the request, number of applied updates; the digest follows


@record
class RecordedOutcome:
    """The outcome of a request, which is recorded so that the same reply can be sent again."""

    decision: Decision
    commit: int  # the log sequence of the commit that contains the decision
    at_ms: int  # the Unix time of this commit


_Packed: TypeAlias = "bytes | RecordedOutcome"


class Outcomes(Mapping[RequestId, RecordedOutcome]):
    """Recorded outcomes by request id, oldest first."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[RequestId, _Packed] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._kept)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._kept

    def __getitem__(self, request_id: RequestId) -> RecordedOutcome:
        return _unpack(request_id, self._kept[request_id])

    def find(self, request_id: RequestId) -> RecordedOutcome | None:
        """Return the outcome of a request, or None. This is faster than `get`, which expects an exception."""
        kept = self._kept.get(request_id)
        return None if kept is None else _unpack(request_id, kept)

    def copy(self) -> "Outcomes":
        """Return a copy that changes independently of this object."""
        copied = Outcomes()
        copied._kept = self._kept.copy()
        return copied

    def add(self, decision: Decision, commit: int, at_ms: int) -> None:
        """Record the outcome of a request that has none, as the newest one."""
        self._kept[decision.request_id] = _pack(decision, commit, at_ms)

    def discard(self, request_id: RequestId) -> None:
        """Forget the outcome of a request, if it has one."""
        self._kept.pop(request_id, None)

    def newer_than(self, commit: int) -> list[RecordedOutcome]:
        """Return the outcomes that were recorded after log sequence `commit`, which are the newest ones."""
        newer: list[RecordedOutcome] = []
        for request_id, kept in reversed(self._kept.items()):
            outcome = _unpack(request_id, kept)
            if outcome.commit <= commit:
                break
            newer.append(outcome)
        return newer[::-1]

    def forget(self, before_ms: int) -> None:
        """Remove the oldest outcomes, as long as they were recorded before `before_ms`.

        Call this rarely: a dict keeps the places of removed entries, and each call passes the places of all entries
        that were removed from the front, which may be as many as there are entries.
        """
        for old in list(takewhile(lambda id_: self[id_].at_ms < before_ms, self._kept)):
            del self._kept[old]


def _pack(decision: Decision, commit: int, at_ms: int) -> _Packed:
    if (
        decision.outcome is _SUCCESS
        and not (decision.redrive or decision.attempts or decision.position or decision.unresolved)
        and not (decision.code or decision.message or decision.conflicts or decision.result)
    ):
        try:
            return _NUMBERS.pack(commit, at_ms, decision.sequence, decision.performed) + decision.digest
        except error:
            pass  # a number takes more than 64 bits
    return RecordedOutcome(decision, commit, at_ms)


def _unpack(request_id: RequestId, kept: _Packed) -> RecordedOutcome:
    if isinstance(kept, RecordedOutcome):
        return kept
    commit, at_ms, sequence, performed = _NUMBERS.unpack_from(kept)
    decision = Decision(sequence, request_id, _SUCCESS, performed, digest=kept[_NUMBERS.size :])
    return RecordedOutcome(decision, commit, at_ms)
