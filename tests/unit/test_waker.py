"""Every wake-up is served by a task that is published after it, and those that wait share one."""

from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser_client import waker as waking
from rebaser_client.waker import Waker
from rebaser_core.ids import ChangeSetKey
from rebaser_core.subjects import Subjects

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


class Tasks:
    """Publishes that began, each of which ends when it may."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = anyio.Semaphore(0)

    async def publish(self, *_: object) -> bool:
        self.begun += 1
        await self.may_end.acquire()
        return True

    async def begin(self, number: int) -> None:
        while self.begun < number:
            await checkpoint()


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    made = Tasks()
    monkeypatch.setattr(waking, "publish_task", made.publish)
    return made


@pytest.fixture
async def waker(tasks: Tasks) -> AsyncIterator[Waker]:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            yield Waker(cast("Any", None), Subjects(""), group)


async def test_a_call_while_a_task_is_published_is_served_by_the_next_one(waker: Waker, tasks: Tasks) -> None:
    """The first may have been refused before the caller's request was there."""
    first = waker.start(KEY)
    await tasks.begin(1)
    later = [waker.start(KEY) for _ in range(3)]
    tasks.may_end.release()
    await first.wait()
    await tasks.begin(2)
    assert not any(one.is_set() for one in later)
    tasks.may_end.release()
    for one in later:
        await one.wait()
    assert tasks.begun == 2


async def test_calls_before_it_begins_share_it(waker: Waker, tasks: Tasks) -> None:
    tasks.may_end.release()
    for one in [waker.start(KEY) for _ in range(3)]:
        await one.wait()
    assert tasks.begun == 1
