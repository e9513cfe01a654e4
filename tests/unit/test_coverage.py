"""Waiting for a DVU: one follower of a log serves all callers, each until its own commit is covered."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from rebaser_client.log.coverage import CoverageWaiter
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey

KEY = ChangeSetKey("ws", "cs")
APART = 10  # log sequences between two commits, which belong to other logs
ROUNDS = 10  # rounds of the event loop after which everything that was ready has run


class Log:
    """A log whose commits cover what `grow` says. It counts its followers."""

    def __init__(self) -> None:
        self.covers: list[int] = []
        self.followers = 0
        self._grown = anyio.Event()

    def grow(self, covers: int) -> None:
        self.covers.append(max(covers, *self.covers[-1:], 0))
        self._grown.set()
        self._grown = anyio.Event()

    async def last(self, _: ChangeSetKey) -> Commit | None:
        return self._commit(len(self.covers)) if self.covers else None

    async def follow(self, _: ChangeSetKey, after: int) -> AsyncGenerator[Commit, None]:
        self.followers += 1
        read = after // APART
        try:
            while True:
                while read < len(self.covers):
                    read += 1
                    yield self._commit(read)
                await self._grown.wait()
        finally:
            self.followers -= 1

    async def wake_owner(self, _: ChangeSetKey) -> None:
        raise AssertionError("it was not only created")

    def _commit(self, number: int) -> Commit:
        sequence = APART * number
        return Commit("", sequence - APART, Kind.DVU, 0, "", None, self.covers[number - 1], sequence=sequence)


async def settled() -> None:
    for _ in range(ROUNDS):
        await checkpoint()


steps = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 9)),
    st.tuples(st.just("give up"), st.integers(0, 5)),
    st.tuples(st.just("cover"), st.integers(0, 9)),
)


@given(st.lists(steps, max_size=12))
def test_each_waits_until_its_commit_is_covered_whoever_else_comes_and_goes(done: list[tuple[str, int]]) -> None:
    anyio.run(_wait, done)


async def _wait(done: list[tuple[str, int]]) -> None:
    log = Log()
    waiting: dict[anyio.CancelScope, int] = {}

    async with anyio.create_task_group() as group:
        covers = CoverageWaiter(cast("Any", log), group, log.wake_owner)

        async def wait(scope: anyio.CancelScope, commit: int) -> None:
            with scope:
                await covers.wait(KEY, commit)
            del waiting[scope]

        for what, number in done:
            if what == "wait":
                scope = anyio.CancelScope()
                waiting[scope] = number
                group.start_soon(wait, scope, number)
            elif what == "cover":
                log.grow(number)
            elif number < len(waiting):
                list(waiting)[number].cancel()
            await settled()
            reached = max(log.covers, default=0) if waiting else 0
            assert all(commit > reached for commit in waiting.values()), "still waits for what is covered"
            assert log.followers == (1 if waiting else 0)
        left = list(waiting.values())
        log.grow(9)
        await settled()
        assert not waiting, left
        assert log.followers == 0


def test_who_waits_again_after_a_refusal_is_refused_again_while_others_are_told() -> None:
    class Refusing(Log):
        async def last(self, _: ChangeSetKey) -> Commit | None:
            raise NotAllowed("subscribe", "the log")

    async def wait_twice(waiter: CoverageWaiter) -> None:
        for _ in range(2):
            with pytest.raises(NotAllowed):
                await waiter.wait(KEY, 1)

    async def run() -> None:
        log = Refusing()
        async with anyio.create_task_group() as group:
            waiter = CoverageWaiter(cast("Any", log), group, log.wake_owner)
            with anyio.fail_after(60):
                async with anyio.create_task_group() as waiting:
                    waiting.start_soon(wait_twice, waiter)
                    waiting.start_soon(wait_twice, waiter)

    anyio.run(run)
