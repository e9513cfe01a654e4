"""Prepares the commits of all owners whose requests arrived in one turn of the event loop, stage by stage.

The code that turns a request into a commit does not fit into the first caches of a processor. If each owner ran all of
it in turn, each would load all of it again. So the owners run each stage one after the other, which saves a quarter of
the time for twenty owners.

Invariant: preparing a commit changes nothing. The owner uses a prepared commit only if its log has not grown since;
otherwise, and whenever something is unusual, it does all the work itself. So an error while preparing is ignored: the
owner meets it again, and handles it.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import structlog

from rebaser.change_set.log.commit_drafts import of_small_batch
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.log.encoded_commit import EncodedCommit
from rebaser_client.jetstream import Message
from rebaser_core.commit import Applied, Commit, Outcome
from rebaser_core.decisions.decide import DecidedBatch, decide
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.messages import check_commit

if TYPE_CHECKING:
    from rebaser.change_set.readers.request_reader import RequestReader

MAX_TIME = 0.005  # seconds; after that, each owner makes its commit by itself if it is not ready

log = structlog.get_logger(__name__)
_SUCCESS = Outcome.SUCCESS  # a lookup of an enum member takes 0.1 µs in Python 3.11


class Preparation:
    """A commit that is being prepared for the only request in `messages`. `applied` has the same meaning as in
    `Processor`."""

    __slots__ = ("applied", "commit", "commits", "decided", "encoded", "is_complete", "messages", "reader", "request")

    request: QueuedRequest
    decided: DecidedBatch
    commit: Commit
    encoded: EncodedCommit

    def __init__(
        self, messages: Sequence[Message], reader: "RequestReader", commits: CommitLog, applied: Applied
    ) -> None:
        self.messages = messages
        self.reader = reader
        self.commits = commits
        self.applied = applied
        self.is_complete = False

    def is_current(self, applied: Applied) -> bool:
        """Return whether the prepared commit may be appended. The caller must hold the append lock. `applied` is the
        current value."""
        return self.commit.previous == self.commits.state.last and applied is self.applied


class Participant(Protocol):
    """An owner that is to decide requests."""

    def prepare(self) -> Preparation | None:
        """Take the queued requests, and return a preparation of their commit, if it can be prepared."""


def prepare_together(owners: Sequence[Participant]) -> None:
    """Prepare the commits of `owners`, as far as that is possible without waiting, and within `MAX_TIME`."""
    until = time.monotonic() + MAX_TIME
    begun = [preparation for owner in owners if (preparation := owner.prepare()) is not None]
    for stage in _STAGES:
        begun = _run(stage, begun, until)
    for preparation in begun:
        preparation.is_complete = True


def _run(stage: Callable[[Preparation], bool], preparations: Sequence[Preparation], until: float) -> list[Preparation]:
    """Run `stage` for each of `preparations`, and return those for which it succeeds. Stop at `until`, a time of
    `time.monotonic`."""
    left, clock = [], time.monotonic
    for preparation in preparations:
        if clock() >= until:
            break
        try:
            if stage(preparation):
                left.append(preparation)
        except Exception as error:  # noqa: BLE001 - the owner will get the same error and handle it
            log.debug("preparation_failed", reason=repr(error))
    return left


def _read(preparation: Preparation) -> bool:
    request = preparation.reader.read_plain(preparation.messages[0])
    if request is None:
        return False
    preparation.request = request
    return True


def _decide(preparation: Preparation) -> bool:
    decided = decide(preparation.commits.state, preparation.applied, (preparation.request,))
    preparation.decided = decided
    return len(decided.decisions) == 1 and decided.decisions[0].outcome is _SUCCESS


def _draft(preparation: Preparation) -> bool:
    stored_ms = preparation.messages[0].timestamp_ns // 1_000_000
    preparation.commit = of_small_batch(preparation.commits, preparation.decided, stored_ms)
    return True


def _encode(preparation: Preparation) -> bool:
    encoded = preparation.commits.encode_plain(preparation.commit)
    if encoded is None:
        return False
    preparation.encoded = encoded
    return True


def _check(preparation: Preparation) -> bool:
    encoded = preparation.encoded
    check_commit(encoded.commit, encoded.headers, encoded.payload)
    return True


_STAGES = (_read, _decide, _draft, _encode, _check)
