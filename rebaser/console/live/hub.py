"""One watch on the installation for all viewers: the newest view, and samples of a few numbers.

Invariant: NATS is asked only while somebody looks, and once for all viewers. `IDLE` seconds after the last viewer, the
watch ends; the next viewer begins a new one.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

import anyio
import structlog

from rebaser.console.live.samples import FleetSample, Samples
from rebaser_client import NotConnectedError, RebaserClient
from rebaser_client.admin.fleet import FleetView
from rebaser_client.admin.fleet_watch import FleetWatch
from rebaser_client.admin.stream_usage import StreamStatus
from rebaser_client.log.branches import BranchInfo
from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import RebaserError

log = structlog.get_logger(__name__)

STEP = 1.25  # seconds from one look to the next, at least
LONGEST_STEP = 5.0  # seconds, at most
# One look, and the pages made from it, cost about 35 µs of processor time per busy change set (20 µs here, 10 µs in
# NATS and 5 µs in servers) and 1 µs per idle one. The factors keep that near 1 % of a core for up to 1,400 busy ones.
STEP_PER_ACTIVE, STEP_PER_CHANGE_SET = 0.0035, 0.0001  # seconds
# Beside the looks, the hub looks at commits alone. If none came since the last time, or more than `FEW`, that costs one
# request to NATS. Otherwise, it shows all that are new: 15 ms with the pages made from it, for 10,000 change sets, and
# 0.2 s after a burst of 5,000 commits. This may take 1/20 of the time, which is saved up to `CREDIT` seconds.
EARLY, FEW = 0.4, 50  # seconds, commits
EARLY_SHARE, CREDIT = 1 / 20, 0.25  # of the time; seconds of processor time
SAMPLED_EVERY = 2.0  # seconds
IDLE = 60.0  # seconds without a viewer until the watch ends
STREAMS_EVERY = 10.0  # seconds
RECONNECT = 2.0  # seconds between two attempts to connect
FIRST_LOOK = 20.0  # seconds that a viewer waits for the first look


@dataclass(frozen=True, slots=True)
class Seen:
    """What the newest look found. `problem` is the reason why there is no newer one; empty if the look is recent."""

    view: FleetView
    change_sets: Sequence[BranchInfo]
    streams: Sequence[StreamStatus]
    problem: str = ""


class Hub:
    """Watches the installation that `connect` connects to."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[RebaserClient]]) -> None:
        self._connect = connect
        self._client: RebaserClient | None = None
        self._problem = ""  # why nothing is seen; empty while that may come
        self._seen: Seen | None = None
        self._streams: Sequence[StreamStatus] = ()
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._wanted_at = -IDLE
        self._sampled_at = 0.0
        self.version = 0  # incremented whenever `_seen` or `_problem` is set
        self.closing = anyio.Event()
        self.samples = Samples()

    async def client(self) -> RebaserClient:
        """Wait for the first connection; return the client. Raises `NotConnectedError` if none is made in time."""
        await self._until(lambda: self._client is not None)
        if self._client is None:
            raise self._nothing()
        return self._client

    async def run(self) -> None:
        """Connect, and look while somebody wants to see. Runs until cancelled."""
        while True:
            try:
                async with self._connect() as self._client:
                    self._problem = ""
                    self.tell()
                    while True:
                        self._seen = None  # it would be old when somebody looks again
                        await self._until_wanted()
                        await self._watch(self._client)
            except RebaserError as error:
                self._fail(error.message)
            except Exception as error:  # must not end the process: in `rebaser dev`, servers run in it, too
                log.exception("console_failed", exc_info=error)
                self._fail("the console failed, and tries again; its log says why")
            finally:
                self._client = None
            await anyio.sleep(RECONNECT)

    async def seen(self) -> Seen:
        """Return the newest look; waits for the first one. Raises `NotConnectedError` if there is none."""
        self._want()
        await self._until(lambda: self._seen is not None)
        if self._seen is None:
            raise self._nothing()
        return self._seen

    async def _until(self, holds: Callable[[], bool]) -> None:
        with anyio.move_on_after(FIRST_LOOK):
            while not holds() and not self._problem:
                await self._changed.wait()

    def _nothing(self) -> NotConnectedError:
        return NotConnectedError(self._problem or "NATS has not answered yet")

    async def newer(self, version: int) -> None:
        """Return as soon as something newer than `version` can be seen, or why nothing can be."""
        while self.version == version:
            self._want()
            with anyio.move_on_after(IDLE / 3):
                await self._changed.wait()

    def close(self) -> None:
        """End all live streams."""
        self.closing.set()
        self.tell()

    def _want(self) -> None:
        self._wanted_at = time.monotonic()
        self._wanted.set()

    async def _until_wanted(self) -> None:
        await self._wanted.wait()
        self._wanted = anyio.Event()

    async def _watch(self, client: RebaserClient) -> None:
        self._streams, streams_at = (), -STREAMS_EVERY
        async with client.fleet() as fleet, flat_task_group() as group:
            group.start_soon(self._look_early, fleet)
            while time.monotonic() - self._wanted_at < IDLE:
                began, step = time.monotonic(), STEP
                try:
                    if began - streams_at >= STREAMS_EVERY:
                        self._streams, streams_at = await client.streams(), began
                    view = await fleet.look()
                    self._look(view, fleet)
                    step = step_after(view)
                except RebaserError as error:
                    self._fail(error.message)
                await anyio.sleep(max(began + step - time.monotonic(), STEP / 4))
            group.cancel_scope.cancel()

    async def _look_early(self, fleet: FleetWatch) -> None:
        """Show new commits at once, if they are few, also while a look waits for servers."""
        credit, now = CREDIT, time.monotonic()
        while True:
            await anyio.sleep(EARLY)
            before, now = now, time.monotonic()
            credit = min(credit + (now - before) * EARLY_SHARE, CREDIT)
            if credit <= 0 or self._problem:
                continue  # a problem has to be ended by a look
            began = time.thread_time()
            with suppress(RebaserError):  # the next look tells
                view = await fleet.look_early(FEW)
                if view is not None and not self._problem:
                    self._show(view, fleet)
                    await anyio.sleep(EARLY / 4)  # by then, the pages have been made
                    credit -= time.thread_time() - began

    def _look(self, view: FleetView, fleet: FleetWatch) -> None:
        if view.seconds and abs(view.at - self._sampled_at) > SAMPLED_EVERY - STEP / 2:  # the first look has no rates
            self._sampled_at = view.at
            self.samples.add(
                FleetSample(
                    view.at,
                    view.requests_per_second,
                    view.commits_per_second,
                    view.requests,
                    sum(1 for row in view.change_sets if row.debt),
                    view.dead_letters,
                    view.oldest_request,
                )
            )
        self._show(view, fleet)

    def _show(self, view: FleetView, fleet: FleetWatch) -> None:
        self._seen = Seen(view, fleet.change_sets(), self._streams)
        self._problem = ""
        self.tell()

    def _fail(self, reason: str) -> None:
        if reason != self._problem:
            log.warning("console_sees_nothing", reason=reason)
        self._problem = reason
        if self._seen is not None:
            self._seen = Seen(self._seen.view, self._seen.change_sets, self._seen.streams, reason)
        self.tell()

    def tell(self) -> None:
        """Wake the live streams: there is something new, or a reason to end."""
        self.version += 1
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


def step_after(view: FleetView) -> float:
    """Return the seconds from a look that found `view` to the next one: more if much is going on."""
    wanted = len(view.change_sets) * STEP_PER_ACTIVE + view.total * STEP_PER_CHANGE_SET
    return max(STEP, min(wanted, LONGEST_STEP))
