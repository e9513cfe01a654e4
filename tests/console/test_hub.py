"""The watch shows new commits soon, while a look waits for servers, too, and for a bounded part of the time."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser.console.live import hub as module
from rebaser.console.live.hub import Hub
from rebaser_client import NotConnectedError, RebaserClient
from rebaser_client.admin.fleet import FleetView

pytestmark = pytest.mark.anyio


class Installation:
    """A client and its fleet: the first look is there at once, the others wait for `answers`. Each early look finds
    something new, and `early` of them may be made."""

    def __init__(self, early: int) -> None:
        self.looks = self.early = 0
        self.answers, self.second, self.fails = anyio.Event(), anyio.Event(), False
        self._most = early

    async def streams(self) -> list[Any]:
        return []

    @asynccontextmanager
    async def fleet(self) -> AsyncIterator["Installation"]:
        yield self

    async def look(self) -> FleetView:
        self.looks += 1
        if self.looks > 1:
            self.second.set()
            await self.answers.wait()
        if self.fails:
            raise NotConnectedError("NATS is away")
        return FleetView(0.0, 1.0, [], [], 0)

    async def look_early(self, most: int) -> FleetView | None:
        assert most == module.FEW
        if self.early == self._most:
            await anyio.sleep_forever()
        self.early += 1
        return FleetView(float(self.early), 1.0, [], [], 0)

    def change_sets(self) -> list[Any]:
        return []


@asynccontextmanager
async def watched(installation: Installation) -> AsyncIterator[Hub]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[RebaserClient]:
        yield cast("RebaserClient", installation)

    hub = Hub(connect)
    async with anyio.create_task_group() as group:
        group.start_soon(hub.run)
        with anyio.fail_after(60):
            await hub.seen()
            yield hub
        group.cancel_scope.cancel()


async def until(hub: Hub, holds: Callable[[], bool]) -> None:
    while not holds():
        await hub.newer(hub.version)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Clocks that only the test moves, and pauses that end at once."""
    clock = SimpleNamespace(now=1000.0, cpu=0.0)
    time = SimpleNamespace(monotonic=lambda: clock.now, thread_time=lambda: clock.cpu)
    monkeypatch.setattr(module, "time", time)
    for name in ("EARLY", "STEP", "LONGEST_STEP"):
        monkeypatch.setattr(module, name, 0.0)
    return clock


@pytest.mark.usefixtures("clock")
async def test_commits_are_shown_while_a_look_waits_for_servers() -> None:
    installation = Installation(early=3)
    async with watched(installation) as hub:
        await installation.second.wait()
        await until(hub, lambda: installation.early == 3)
        assert (await hub.seen()).view.at == 3.0
        assert installation.looks == 2, "it still waits"


async def test_early_looks_take_their_share_of_the_time(clock: SimpleNamespace) -> None:
    installation = Installation(early=100)
    look = installation.look_early

    async def costly(most: int) -> FleetView | None:
        clock.cpu += module.CREDIT / 2 + 0.001
        return await look(most)

    installation.look_early = costly  # type: ignore[method-assign]
    async with watched(installation) as hub:
        await installation.second.wait()
        await until(hub, lambda: installation.early == 2)
        for _ in range(50):
            await checkpoint()
        assert installation.early == 2, "all that was saved up is used up"
        clock.now += 0.1 / module.EARLY_SHARE
        await until(hub, lambda: installation.early == 3)


@pytest.mark.usefixtures("clock")
async def test_a_problem_stays_until_a_look_has_ended_it() -> None:
    installation = Installation(early=10**9)
    async with watched(installation) as hub:
        await installation.second.wait()
        installation.fails = True
        installation.answers.set()
        while not (seen := await hub.seen()).problem:
            await hub.newer(hub.version)
        installation.answers, before = anyio.Event(), installation.early
        assert seen.problem == "NATS is away"
        for _ in range(50):
            await checkpoint()
        assert installation.early <= before + 1, "one may have begun before"
        assert (await hub.seen()).problem == "NATS is away"
        installation.fails = False
        installation.answers.set()
        await until(hub, lambda: installation.early > before + 1)
        assert not (await hub.seen()).problem
