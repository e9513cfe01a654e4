"""The functions that the server calls to feed its counters and histograms. Each function has one caller."""

import asyncio
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from rebaser.telemetry.catalogue import (
    APPEND_SECONDS,
    BATCH_REQUESTS,
    DVU_SECONDS,
    FRESHNESS_SECONDS,
    LOOP_LAG_SECONDS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    REQUESTS_DECIDED,
    REQUESTS_REPEATED,
)
from rebaser_client.jetstream import Message
from rebaser_core.commit import Kind, Outcome
from rebaser_core.decisions.decide import DecidedBatch
from rebaser_core.errors import FencedError

clock = time.perf_counter
_OUTCOMES = tuple(Outcome)
_APPENDED = {Kind.DVU: "dvu", Kind.CHECKPOINT: "checkpoint", Kind.ATTEMPT: "attempt"}  # the others: requests, and pulls


def queue_taken(messages: Sequence[Message]) -> Sequence[Message]:
    """An owner took `messages` from its queue. Returns them."""
    QUEUE_SECONDS.observe_ages(time.time_ns(), [message.timestamp_ns for message in messages])
    return messages


def requests_decided(batch: DecidedBatch) -> None:
    """A batch was decided, and its commit is in the log."""
    if batch.decisions:
        BATCH_REQUESTS.observe(len(batch.decisions))
        outcomes = [decision.outcome for decision in batch.decisions]
        for outcome in _OUTCOMES:
            if number := outcomes.count(outcome):
                REQUESTS_DECIDED.add(number, outcome)
    if repeated := len(batch.answers) - len(batch.decisions):
        REQUESTS_REPEATED.add(repeated)


def requests_answered(messages: Sequence[Message]) -> None:
    """The answers to `messages` were handed to NATS; for dead requests, the decisions were appended to the log."""
    REQUEST_SECONDS.observe_ages(time.time_ns(), [message.timestamp_ns for message in messages])


def commit_appended(began: float, kind: Kind, log: Any) -> None:
    """A commit is in its log; the first attempt to append it began at `began` (`clock`)."""
    seconds = clock() - began
    APPEND_SECONDS.observe(seconds, _APPENDED.get(kind, "requests"))
    log.debug("commit_appended", kind=kind, seconds=seconds)


@contextmanager
def update_runs(log: Any) -> Iterator[MutableMapping[str, object]]:
    """An update runs until the context is left. Yields the fields of its event, to which the update adds its own."""
    began, result, fields = clock(), "done", dict[str, object]()
    try:
        yield fields
    except FencedError:
        result = "fenced"
        raise
    except asyncio.CancelledError:
        result = "cancelled"
        raise
    except BaseException:
        result = "failed"
        raise
    finally:
        seconds = clock() - began
        DVU_SECONDS.observe(seconds, result)
        log.debug("dvu_ended", result=result, **fields, ms=round(seconds * 1000, 1))


def loop_was_late(seconds: float) -> None:
    """A timer of the event loop was late by `seconds`."""
    LOOP_LAG_SECONDS.observe(seconds)


class DebtClock:
    """Measures for how long a change set has owed an update. `owes`: whether it owes one now."""

    def __init__(self, *, owes: bool) -> None:
        self._since = clock() if owes else None
        self._update_began = 0.0

    def age(self) -> float:
        """Return the seconds since an update became due; 0 if no update is due."""
        return 0.0 if self._since is None else clock() - self._since

    def update_began(self) -> None:
        """An update begins. It does not cover values that become due from now on."""
        self._update_began = clock()

    def committed(self, kind: Kind, *, owes: bool) -> None:
        """A commit was folded. `owes`: whether the change set owes an update now."""
        if kind is Kind.DVU and self._since is not None:
            FRESHNESS_SECONDS.observe(clock() - self._since)
            self._since = max(self._since, self._update_began)
        if not owes:
            self._since = None
        elif self._since is None:
            self._since = clock()
