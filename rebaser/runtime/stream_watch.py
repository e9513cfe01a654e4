"""Watches the streams. If a stream disappears, recreates it, and logs what data was lost.

A stream disappears when an operator deletes it, when the store is wiped, or when nats-server ends and the stream was
kept in memory. The loss may cause an error in any part of the server, or no error at all. The streams are therefore
checked periodically, after each reconnect, and when any part of the server requests a check. They are also checked when
NATS announces that a stream was deleted, if the server's NATS user may subscribe to such announcements.

Invariants: the server is unready from the moment a check finds a stream missing until all streams exist. The sequences
of a recreated stream start far above the last sequence of the old stream, so that an ack or delete for a message of the
old stream cannot affect a message of the new one. The owners that depend on a stream are notified when that stream has
been replaced, even if another server recreated it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import anyio
import structlog

from rebaser.runtime.acked_tasks import AckedTasks
from rebaser.snapshot import STREAMS, StreamUsage
from rebaser.telemetry.clocks import NATS_CLOCK
from rebaser_client.admin.provisioning import ensure_topology, examine_topology
from rebaser_client.jetstream import ApiError, JetStream, StreamInfo
from rebaser_client.jetstream.errors import CONSUMER_NOT_FOUND, NO_SPACE, STREAM_NOT_FOUND
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.errors import ConfigError, RebaserError, TransientError
from rebaser_core.streams import topology
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import first_sequence_after

log = structlog.get_logger(__name__)

DELETED = "$JS.EVENT.ADVISORY.STREAM.DELETED.*"  # the subject on which NATS announces deleted streams
CHECK = 5.0  # seconds between checks, unless a check is requested earlier
MIN_PAUSE = 0.25  # minimum seconds between checks, even if more are requested
MAX_LOSSES = 12  # maximum number of losses that are reported; the newest are kept


class StreamLossListener(Protocol):
    """An object that is notified when streams disappear."""

    def streams_lost(self, streams: Mapping[str, int]) -> None:
        """Handle the loss of the contents of `streams`. Another server may have recreated the streams already.

        `streams` maps the name of each stream to a sequence: messages from that sequence on are not lost, because they
        are in the new stream.
        """
        ...

    def streams_recreated(self, streams: frozenset[str]) -> None:
        """Handle the end of a loss: the streams with the names `streams` exist again, but are empty."""
        ...


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """The state of a stream at `time` (UTC), when the stream was checked.

    `created` is the time at which the stream was created, and `last` is its last sequence. `first_age` is the age of
    its oldest message in seconds, and `first` its sequence; both are 0 if the stream is empty.
    """

    created: str
    messages: int
    last: int
    time: str
    usage: StreamUsage
    first_age: float = 0.0
    first: int = 0


NEVER = StreamSnapshot("", 0, 0, "no time", StreamUsage(0, 0, 0.0))


class StreamWatch:
    """Watches the streams of one installation. Call `ensure` to create them, then call `run` in a task group.

    If `create` is false, it only checks the streams: `rebaser init` creates and updates them, and servers need no
    permission to do so. `problem` is the reason why the server is not ready; it is empty if the server is ready.
    `losses` are descriptions of the data that was lost while this server ran. `tasks` has two numbers: the tasks that
    wait for a server, and the tasks that servers hold. `clock_ahead` is the number of seconds by which the clock of
    this machine was ahead of the clock of NATS at the last check; negative if it was behind.
    """

    def __init__(
        self, js: JetStream, subjects: Subjects, options: topology.TopologyOptions, *, create: bool = True
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._options = options
        self._create = create
        self._names = [config["name"] for config in topology.streams(subjects, options)]
        self._seen: dict[str, StreamSnapshot] = {}
        self._lost: frozenset[str] = frozenset()  # lost streams that are not recreated yet
        self._check_wanted = anyio.Event()
        self._refusals: dict[str, str] = {}
        self._acked_tasks = AckedTasks(js, subjects)
        self._tasks_acked = 0  # the sequence up to which all tasks are acked
        self._paused = ""
        self._sweep_paused = False
        self.problem = ""
        self.tasks = (0, 0)
        self.clock_ahead = 0.0
        self.losses: deque[str] = deque(maxlen=MAX_LOSSES)

    async def ensure(self) -> None:
        """Create missing streams and consumers, and update existing ones. Raise the errors of `ensure_topology`.

        If `create` is false, change nothing. Raise `TransientError` if a stream or consumer is missing, and
        `ConfigError` if its configuration differs from the settings.
        """
        if self._create:
            await ensure_topology(self._js, self._subjects, self._options)
        else:
            parts = await examine_topology(self._js, self._subjects, self._options)
            if missing := [str(part) for part in parts if not part.exists]:
                raise _missing(missing)
            if different := [f"{part}: {', '.join(part.differences)}" for part in parts if part.differences]:
                raise ConfigError(f"{'; '.join(different)}: run `rebaser init` with the settings of the servers")
        self._seen = await self._snapshots()
        await self._missing_consumers()  # this also reads the numbers of tasks for the first time

    def usage(self) -> dict[str, StreamUsage]:
        """Return the usage of each stream at the last check, by its name in `STREAMS`."""
        subjects = self._subjects
        kinds = {getattr(subjects, f"{kind}_stream"): kind for kind in STREAMS if kind != "blobs"}
        kinds[f"OBJ_{subjects.blobs_bucket}"] = "blobs"
        return {kinds[name]: seen.usage for name, seen in self._seen.items()}

    def oldest_request_age(self) -> float:
        """Return the age of the oldest queued request at the last check, in seconds; 0 if there was none."""
        return self._last_seen(self._subjects.requests_stream).first_age

    def check_soon(self) -> None:
        """Request a check, for instance because an operation failed and a missing stream may be the cause."""
        self._check_wanted.set()

    def note_refusal(self, refusal: str, what: str = "messages") -> None:
        """Record why NATS has no room for `what`, or an empty string if it has room.

        While NATS has no room, the server is not ready.
        """
        if refusal:
            refusal = f"NATS stores no {what}: {refusal}"
        if NO_SPACE in refusal:
            refusal += "; make room on the disks of NATS, then restart nats-server, which may not recover by itself"
        if refusal != self._refusals.get(what, ""):
            self._refusals[what] = refusal
            self.check_soon()

    async def run(self, listener: StreamLossListener) -> None:
        """Check the streams, and recreate them, until cancelled."""
        connection = self._js.connection
        async with AsyncExitStack() as stack:
            stack.callback(connection.on_reconnect(self.check_soon))
            stack.push_async_callback((await connection.listen(DELETED, lambda *_: self.check_soon())).close)
            while True:
                with anyio.move_on_after(CHECK):
                    await self._check_wanted.wait()
                self._check_wanted = anyio.Event()
                try:
                    await self._check(listener)
                    self._set_problem(next(filter(None, self._refusals.values()), self._paused))
                except NotConnectedError:
                    pass  # the connection is the problem; the streams are checked as soon as it is back
                except RebaserError as error:
                    self._set_problem(f"the streams cannot be checked or created: {error.message}")
                    self.check_soon()
                await anyio.sleep(MIN_PAUSE)

    async def _check(self, listener: StreamLossListener) -> None:
        snapshots = await self._snapshots()
        gone = [name for name in self._names if name not in snapshots]
        replaced = [
            name for name in snapshots if name in self._seen and snapshots[name].created != self._seen[name].created
        ]
        consumers = [] if gone else await self._missing_consumers()
        if lost := frozenset([*gone, *replaced]) - self._lost:
            self._report_lost(lost)
            self._lost |= lost
            listener.streams_lost({name: first_sequence_after(self._last_seen(name).last) for name in lost})
        if gone or consumers:
            self._set_problem(self.problem or f"missing in NATS: {', '.join([*gone, *consumers])}")
            if not self._create:
                raise _missing([*gone, *consumers])
            ends = {name: self._last_seen(name).last for name in gone}
            await ensure_topology(self._js, self._subjects, self._options, ends)
            snapshots = await self._snapshots()
            if gone:
                log.warning("streams_created", streams=gone)
            else:
                log.warning("consumers_created", consumers=consumers)
        self._seen |= snapshots
        if again := [name for name in self._names if name not in snapshots]:
            raise TransientError(
                f"{', '.join(again)} disappeared again right after being created; find out who deletes streams",
                code="not_ready",
            )
        if self._lost:
            recreated, self._lost = self._lost, frozenset()
            listener.streams_recreated(recreated)
        elif not consumers:
            await self._acked_tasks.check(snapshots[self._subjects.tasks_stream].first, self._tasks_acked)

    async def _snapshots(self) -> dict[str, StreamSnapshot]:
        """Return the state of each stream that exists, by name."""
        snapshots: dict[str, StreamSnapshot] = {}
        ahead: list[float] = []
        for name in self._names:
            try:
                info = await self._js.stream_info(name)
            except ApiError as error:
                if error.err_code != STREAM_NOT_FOUND:
                    raise
            else:
                if info.now:
                    ahead.append((datetime.now(UTC) - datetime.fromisoformat(info.now)).total_seconds())
                snapshots[name] = StreamSnapshot(
                    info.created,
                    info.messages,
                    info.last_sequence,
                    _now(),
                    _usage(info),
                    _first_age(info),
                    info.first_sequence if info.messages else 0,
                )
        if ahead:
            self.clock_ahead = min(ahead)  # each includes the time that the answer took
            NATS_CLOCK.compare(self.clock_ahead)
        return snapshots

    async def _missing_consumers(self) -> list[str]:
        missing, self._paused, self._tasks_acked = [], "", 0
        for stream, consumer in topology.consumers(self._subjects, self._options):
            try:
                info = await self._js.consumer_info(stream, consumer["name"])
                resume = f"`nats consumer resume {stream} {info.name}`"
                if consumer["name"] == topology.TASKS_CONSUMER:
                    self.tasks = info.num_pending, info.num_ack_pending
                    why = f"somebody has paused the delivery of messages to servers; to resume it: {resume}"
                    self._paused = why if info.paused else ""
                    self._tasks_acked = info.ack_floor_stream
                else:  # without sweeps, servers still get tasks
                    if info.paused and not self._sweep_paused:
                        log.warning("sweep_paused", reason=f"somebody has paused the sweeps; to resume them: {resume}")
                    self._sweep_paused = info.paused
            except ApiError as error:
                if error.err_code != CONSUMER_NOT_FOUND:
                    raise
                missing.append(f"consumer {consumer['name']} of {stream}")
        return missing

    def _last_seen(self, name: str) -> StreamSnapshot:
        return self._seen.get(name, NEVER)

    def _report_lost(self, lost: Iterable[str]) -> None:
        for name in sorted(lost):
            seen = self._last_seen(name)
            log.error("stream_lost", stream=name, messages=seen.messages, last_sequence=seen.last, as_of=seen.time)
            contents = f"{seen.messages:,} messages, last sequence {seen.last}"
            self.losses.append(f"{_now()} stream {name} was lost with its contents (as of {seen.time}: {contents})")

    def _set_problem(self, problem: str) -> None:
        """Record the problem. Each `server_unready` is followed by one `server_ready_again`, however often the reason
        changes. Alerts rely on this: they subtract the counts of the two events, and the difference is 1 as long as
        the server is not ready."""
        if problem and not self.problem:
            log.error("server_unready", reason=problem)
        elif problem and problem != self.problem:
            log.error("unready_reason_changed", reason=problem)
        elif self.problem and not problem:
            log.warning("server_ready_again")
        self.problem = problem


def _missing(parts: list[str]) -> TransientError:
    return TransientError(
        f"missing in NATS: {', '.join(parts)}; run `rebaser init`, because REBASER_CREATE_STREAMS is false"
    )


def _usage(info: StreamInfo) -> StreamUsage:
    used = ((info.messages, info.config.get("max_msgs")), (info.bytes, info.config.get("max_bytes")))
    full = max((value / limit for value, limit in used if isinstance(limit, int) and limit > 0), default=0.0)
    return StreamUsage(info.messages, info.bytes, full, info.copies_behind)


def _first_age(info: StreamInfo) -> float:
    """Return the age of the oldest message in seconds, by the NATS server's clock; 0 if there is no message."""
    if not info.first_time or not info.now:
        return 0.0
    stored, now = datetime.fromisoformat(info.first_time), datetime.fromisoformat(info.now)
    return max((now - stored).total_seconds(), 0.0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
