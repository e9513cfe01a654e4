"""The outcomes of requests that a state remembers, and how it forgets them.

A change set may decide thousands of requests per second, and remembers their outcomes for minutes. The outcome of a
request that was simply applied is therefore stored as bytes, which take little memory and which Python's garbage
collector does not track. Unpacking a million outcomes takes seconds.
"""

from collections.abc import Iterator
from itertools import dropwhile, starmap, takewhile
from struct import Struct, error

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


class Outcomes(dict[RequestId, bytes | RecordedOutcome]):
    """A map from request ids to recorded outcomes, oldest first. Its values are what `pack` returns."""

    __slots__ = ()

    def of(self, request_id: RequestId) -> RecordedOutcome:
        """Return the outcome of a request, which must have one."""
        return unpack(request_id, self[request_id])

    def unpacked(self) -> Iterator[RecordedOutcome]:
        """Yield all outcomes, oldest first."""
        return starmap(unpack, self.items())

    def unusual(self) -> Iterator[RecordedOutcome]:
        """Yield the outcomes that are not bytes, oldest first. They include those of all requests that failed."""
        return (packed for packed in self.values() if isinstance(packed, RecordedOutcome))

    def since(self, at_ms: int) -> Iterator[RecordedOutcome]:
        """Yield the outcomes, oldest first, without the oldest ones that were recorded before `at_ms`."""
        for request_id, packed in dropwhile(lambda item: _time_of(item[1]) < at_ms, self.items()):
            yield unpack(request_id, packed)

    def newer_than(self, commit: int) -> "Outcomes":
        """Return the outcomes that were recorded after log sequence `commit`, which are the newest ones."""
        if not commit:
            return Outcomes(self)
        newest_first = takewhile(lambda item: _commit_of(item[1]) > commit, reversed(self.items()))
        return Outcomes(list(newest_first)[::-1])

    def forget(self, before_ms: int) -> None:
        """Remove the oldest outcomes, as long as they were recorded before `before_ms`.

        Call this rarely: a dict keeps the places of removed entries, and each call passes the places of all entries
        that were removed from the front, which may be as many as there are entries.
        """
        for request_id in list(takewhile(lambda id_: _time_of(self[id_]) < before_ms, self)):
            del self[request_id]


def pack(decision: Decision, commit: int, at_ms: int) -> bytes | RecordedOutcome:
    """Return a recorded outcome in the form that takes the least memory: bytes if the request was simply applied,
    otherwise a `RecordedOutcome`."""
    if (
        decision.outcome is _SUCCESS
        and not (decision.redrive or decision.attempts or decision.position or decision.unresolved)
        and not (decision.code or decision.message or decision.conflicts or decision.result)
    ):
        try:
            return _NUMBERS.pack(commit, at_ms, decision.sequence, decision.performed) + decision.digest
        except error:
            pass  # a number does not fit into 64 bits, so the outcome is kept as an object
    return RecordedOutcome(decision, commit, at_ms)


def plain(packed: bytes | RecordedOutcome) -> tuple[int, int, int, int, bytes] | None:
    """Return the fields of an outcome that is packed as bytes: the sequence and the Unix time (ms) of the commit, the
    sequence of the request, the number of updates that were applied, and the digest. Return None for any other outcome.

    This takes a quarter of the time of `unpack`.
    """
    return None if isinstance(packed, RecordedOutcome) else (*_NUMBERS.unpack_from(packed), packed[_NUMBERS.size :])


def _commit_of(packed: bytes | RecordedOutcome) -> int:
    return packed.commit if isinstance(packed, RecordedOutcome) else int(_NUMBERS.unpack_from(packed)[0])


def _time_of(packed: bytes | RecordedOutcome) -> int:
    return packed.at_ms if isinstance(packed, RecordedOutcome) else int(_NUMBERS.unpack_from(packed)[1])


def unpack(request_id: RequestId, packed: bytes | RecordedOutcome) -> RecordedOutcome:
    """Return the outcome of the request `request_id`, which `pack` has packed."""
    if isinstance(packed, RecordedOutcome):
        return packed
    commit, at_ms, sequence, performed = _NUMBERS.unpack_from(packed)
    decision = Decision(sequence, request_id, _SUCCESS, performed, digest=packed[_NUMBERS.size :])
    return RecordedOutcome(decision, commit, at_ms)
