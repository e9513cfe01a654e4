"""The functions that the server calls to feed its counters and histograms. Each function has one caller."""

import asyncio
import time
from collections.abc import Collection, Iterator, MutableMapping, Sequence, Sized
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Literal

from rebaser.telemetry import clocks
from rebaser.telemetry.catalogue import (
    API_SECONDS,
    APPEND_SECONDS,
    BATCH_REQUESTS,
    BLOB_BYTES,
    BLOB_ERRORS,
    BLOB_SECONDS,
    CHECKPOINT_BYTES,
    CHECKPOINT_SECONDS,
    COMMIT_BYTES,
    DVU_SECONDS,
    DVU_STAGE_SECONDS,
    DVU_VALUES,
    FRESHNESS_SECONDS,
    LANES,
    LOAD_SECONDS,
    LOOP_LAG_SECONDS,
    OWNERSHIP_ENDED,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    REQUESTS_DECIDED,
    REQUESTS_REPEATED,
    SPARK_BYTES,
    SPARK_JOB_CALLERS,
    SPARK_JOB_SECONDS,
    SPARK_JOBS,
    SPARK_WAIT_SECONDS,
    SWEEP_SECONDS,
    TASKS_REDELIVERED,
)
from rebaser.telemetry.clocks import NATS_CLOCK, RECENT_LAG
from rebaser.telemetry.tracing import UPDATE
from rebaser_client.blobs import BlobMissing
from rebaser_client.jetstream import Message
from rebaser_core.commit import Commit, Kind, Outcome
from rebaser_core.errors import FencedError, RebaserError
from rebaser_core.ids import ChangeSetKey

if TYPE_CHECKING:
    from rebaser.telemetry.spans import ServerSpans, Traced
    from rebaser.telemetry.update_spans import UpdateSpans

clock = clocks.clock

# The series that each commit feeds. They are looked up once, and by `is`: the hash of an enum member takes longer than
# counting.
_TAKEN, _ANSWERED, _BATCH = QUEUE_SECONDS.series(), REQUEST_SECONDS.series(), BATCH_REQUESTS.series()
_DECIDED = [(outcome, REQUESTS_DECIDED.count(outcome.value)) for outcome in Outcome]
_SUCCESS, _SUCCEEDED = Outcome.SUCCESS, dict(_DECIDED)[Outcome.SUCCESS]
_INLINE, _BLOBS = (COMMIT_BYTES.count(part) for part in ("inline", "blob"))
_APPENDED = {kind: APPEND_SECONDS.series(kind) for kind in ("requests", "dvu", "checkpoint", "attempt", "pull")}
_REBASE, _DVU, _REQUESTS = Kind.REBASE, Kind.DVU, _APPENDED["requests"]
_OFTEN = (_TAKEN, _ANSWERED, _BATCH, _REQUESTS)
_MANY = 1000  # answered requests after which the observations in `_OFTEN` are counted
_ages = _ANSWERED.ages
_taken, _answered, _decided, _appended = (
    _TAKEN.ages.append, _ages.append, _BATCH.values.append, _REQUESTS.values.append,
)  # fmt: skip
_KINDS = {Kind.DVU: "dvu", Kind.CHECKPOINT: "checkpoint", Kind.ATTEMPT: "attempt"}  # other kinds count as "requests"


def commit_appended(began: float, commit: Commit, inline: int, blobs: int) -> float:
    """Record that a commit is in its log, and that the requests in it are decided. Return the value of `clock`. `began`
    is the value of `clock` before the first attempt to append it.

    `inline` is the size of its message in bytes. `blobs` is the total size in bytes of the blobs that hold the rest of
    it.
    """
    now, requests = clock(), commit.requests
    if commit.kind is _REBASE:
        _appended(now - began)
    else:
        pulled = commit.kind is Kind.REPLAY and not requests  # a replay with requests was requested by a client
        _APPENDED["pull" if pulled else _KINDS.get(commit.kind, "requests")].observe(now - began)
    _INLINE.value += inline
    if blobs:
        _BLOBS.value += blobs
    left = len(requests)
    if left == 1 and requests[0].outcome is _SUCCESS:
        _decided(1)
        _SUCCEEDED.value += 1
    elif left:
        _decided(left)
        outcomes = [decision.outcome for decision in requests]
        for outcome, count in _DECIDED:
            if number := outcomes.count(outcome):
                count.value += number
                left -= number
                if not left:
                    break
    return now


def requests_repeated(number: int) -> None:
    """Record that requests which had already been decided were read again."""
    REQUESTS_REPEATED.add(number)


def requests_answered(messages: Sequence[Message], taken: int) -> int:
    """Record how long `messages` had waited when their owner began to read them, at `taken` (`time.monotonic_ns`), and
    the time until their answers were handed to NATS or, for dead requests, until the decisions were appended to the
    log. Return the Unix time in nanoseconds."""
    offset = NATS_CLOCK.offset
    now, taken = time.monotonic_ns() + offset, taken + offset
    for message in messages:
        stored = message.timestamp_ns
        _taken(taken - stored)
        _answered(now - stored)
    if len(_ages) >= _MANY:
        for series in _OFTEN:
            series.fold()
    return now


def requests_traced(traced: Sequence[tuple[int, str]], now: int) -> None:
    """Record the traces of requests that were answered at `now`. `traced` holds, for each request, when it was stored
    (Unix ns) and its trace id."""
    for stored, trace_id in traced:
        _ANSWERED.add_exemplar(now - stored, trace_id, now)


def log_loaded(seconds: float, key: ChangeSetKey, *, redelivered: bool, traces: "ServerSpans | None" = None) -> None:
    """Record that an owner has loaded its log, `seconds` after it got the task. `redelivered` is true if the task had
    been delivered before. `traces` records slow work, if traces are on."""
    LOAD_SECONDS.observe(seconds)
    TASKS_REDELIVERED.add(redelivered)
    if traces is not None:
        traces.slow_work_ended("load", key, seconds, {"rebaser.redelivered": redelivered})


def ownership_ended(why: Enum | None, *, done: bool) -> None:
    """Record that an owner has ended. `why` is the reason if the owner had to end while its change set still had work,
    and None otherwise. `done` is true if the owner ended without an error."""
    OWNERSHIP_ENDED.add(1, why.value if why is not None else "quiet" if done else "broken")


def checkpoint_written(began: float, key: ChangeSetKey, size: int, traces: "ServerSpans | None" = None) -> None:
    """Record that a new checkpoint was written, and that a commit in the log refers to it. `began` is the value of
    `clock` when writing began. `size` is the total size of the checkpoint's new parts in bytes. `traces` records slow
    work, if traces are on."""
    seconds = clock() - began
    CHECKPOINT_SECONDS.observe(seconds)
    CHECKPOINT_BYTES.add(size)
    if traces is not None:
        traces.slow_work_ended("checkpoint", key, seconds, {"rebaser.bytes": size})


def swept(began: float) -> None:
    """Record that a sweep has ended. `began` is the value of `clock` when the sweep began."""
    SWEEP_SECONDS.observe(clock() - began)


def spark_job_ended(
    result: str,
    tag: str,
    *,
    large: bool,
    waited: float,
    seconds: float,
    sent: Sequence[int],
    received: int,
    updates: Sequence["UpdateSpans"] = (),
    address: str = "",
) -> None:
    """Record that a Spark job has ended. `result` is one of `JOB_RESULTS`. `waited` is the number of seconds that its
    first caller waited for the job to begin. `tag` is the job's tag in Spark's web UI.

    `sent` contains the size in bytes of each caller's packets. `received` is the total size of all results in bytes.
    `updates` are the spans of the callers; empty if traces are off. `address` is the host of a remote Spark, or empty.
    """
    lane = LANES[large]
    SPARK_JOBS.add(1, lane, result)
    SPARK_JOB_SECONDS.observe(seconds, lane)
    SPARK_WAIT_SECONDS.observe(waited)
    SPARK_JOB_CALLERS.observe(len(sent))
    for direction, size in ("sent", sum(sent)), ("received", received):
        SPARK_BYTES.add(size, direction)
    if updates:
        about: dict[str, str | int | float] = {
            "rebaser.spark.tag": tag,
            "rebaser.spark.lane": lane,
            "rebaser.spark.callers": len(sent),
            "rebaser.spark.waited": round(waited, 6),
        }
        if address:
            about["server.address"] = address
        updates[0].job_ended(updates[1:], seconds, result, about)


class StageClock:
    """Measures the consecutive stages of an update. The first stage begins when this object is created."""

    def __init__(self) -> None:
        self._began = clock()
        self._spans = UPDATE.get()

    def ended(self, stage: str, wave: int, parts: Collection[Sized]) -> None:
        """Record that a stage of the wave `wave` has ended, and begin the next stage. `parts` are the packets that the
        stage made or that Spark computed, or the results that it absorbed."""
        now = clock()
        DVU_STAGE_SECONDS.observe(now - self._began, stage)
        if self._spans is not None:
            self._spans.stage_ended(stage, now - self._began, wave, len(parts), sum(map(len, parts)))
        self._began = now


@contextmanager
def api_call() -> Iterator[None]:
    """Record a JetStream API call. Keep this context open for the duration of the call."""
    began, result = clock(), "failed"
    try:
        yield
        result = "done"
    finally:
        API_SECONDS.observe(clock() - began, result)


@contextmanager
def blob_operation(op: Literal["put", "get", "has"]) -> Iterator[list[int]]:
    """Record an operation on the blob store. Keep this context open for the duration of the operation. Yield a list, to
    which the caller appends the number of bytes that it read or wrote."""
    began, moved = clock(), list[int]()
    try:
        yield moved
    except RebaserError as error:
        if not isinstance(error, BlobMissing):  # the store works
            BLOB_ERRORS.add(1, op)
        raise
    finally:
        BLOB_SECONDS.observe(clock() - began, op)
        if op != "has":
            BLOB_BYTES.add(sum(moved), op)


@contextmanager
def update_runs(commits: "Traced") -> Iterator[MutableMapping[str, object]]:
    """Record an update of the change set of `commits`. Keep this context open for the duration of the update. Yield the
    fields of its log event as an empty dict, which the update fills."""
    began, result, fields = clock(), "done", dict[str, object]()
    traced = None if commits.traces is None else commits.traces.of(commits)
    spans = None if traced is None else traced.update_begins()
    current = UPDATE.set(spans)
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
        for what in ("reached", "changed", "errors"):
            if isinstance(number := fields.get(what), int):
                DVU_VALUES.add(number, what)
        DVU_SECONDS.observe(seconds, result)
        UPDATE.reset(current)
        if spans is not None:
            spans.ended(result, fields)
        if traced is not None:
            traced.drop_if_idle(commits)
        commits.logger.debug("dvu_ended", result=result, **fields, ms=round(seconds * 1000, 1))


def loop_was_late(seconds: float) -> None:
    """Record that a timer of the event loop was late by `seconds`."""
    LOOP_LAG_SECONDS.observe(seconds)
    RECENT_LAG.note(seconds)


class DebtClock:
    """Measures how long an update of a change set has been due. `owes` is true if an update is due from the start.
    `since` is the value of `clock` when it became due, or None if no update is due.

    While none is due, a commit after which none is due need not be recorded.
    """

    def __init__(self, *, owes: bool) -> None:
        self.since = clock() if owes else None
        self._update_began = 0.0

    def age(self) -> float:
        """Return the seconds since an update became due; 0 if no update is due."""
        return 0.0 if self.since is None else clock() - self.since

    def update_began(self) -> None:
        """Record that an update begins. The update does not cover edits that are committed from now on."""
        self._update_began = clock()

    def committed(self, kind: Kind, *, owes: bool) -> None:
        """Record that a commit was folded into the state. `owes` is true if an update is due after the commit."""
        if kind is _DVU and self.since is not None:
            FRESHNESS_SECONDS.observe(clock() - self.since)
            self.since = max(self.since, self._update_began)
        if not owes:
            self.since = None
        elif self.since is None:
            self.since = clock()
