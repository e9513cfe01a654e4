"""More change sets than slots: each has its turn, however long it takes to load."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from rebaser import server
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import LogReader
from rebaser_core.ids import ChangeSetKey
from rebaser_core.subjects import Subjects
from rebaser_core.topology import TASKS_CONSUMER
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
async def client(nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as connected:
        yield connected


async def test_loading_is_no_part_of_a_turn(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an owner that loads for longer than its turn would be sent away before it decided anything, each time."""
    monkeypatch.setattr(server, "CROWD_CHECK", 0.02)
    looked = 0
    consumer_info, load = JetStream.consumer_info, LogReader.load

    async def looks(self: JetStream, stream: str, name: str) -> Any:
        nonlocal looked
        looked += name == TASKS_CONSUMER
        return await consumer_info(self, stream, name)

    async def loads(self: LogReader, key: ChangeSetKey) -> Any:
        until = looked + 3
        while looked < until:  # noqa: ASYNC110 - it is counted by another task
            await anyio.sleep(0.01)
        return await load(self, key)

    for name in ("one", "two"):
        await client.enqueue_updates("ws", name, [Set("a", 1)])
    monkeypatch.setattr(JetStream, "consumer_info", looks)
    async with serving(js, subjects, Engine(), concurrency=1, turn=0.01):
        monkeypatch.setattr(LogReader, "load", loads)
        with anyio.fail_after(30):
            for name in ("one", "two"):
                async for commit in client.watch("ws", name, after=0):
                    assert commit.requests
                    break


async def test_an_owner_that_is_never_idle_yields_when_its_turn_is_over(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CROWD_CHECK", 0.02)
    monkeypatch.setattr(server, "IDLE_AFTER", float("inf"))
    async with serving(js, subjects, Engine(), concurrency=1, turn=0.01):
        for name in ("one", "two", "one"):
            await client.enqueue_updates_with_reply("ws", name, [Set("a", 1)], timeout=20)
