"""Change sets with work and without a task get a task."""

from dataclasses import replace
from typing import Any

import anyio
import pytest

from rebaser.sweeper.sweeper import Sweeper
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_client.jetstream.infos import StreamInfo
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey, ulid
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.sweeps import drop_tasks, tasks

pytestmark = pytest.mark.anyio

A, B, C = (ChangeSetKey("ws", name) for name in "abc")


class Log:
    """Writes commits with or without debt."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.js = js
        self.subjects = subjects
        self.previous: dict[ChangeSetKey, int] = {}

    async def append(self, key: ChangeSetKey, debt: int) -> None:
        previous = self.previous.get(key, 0)
        commit = Commit(
            id=ulid(1, bytes(10)),
            previous=previous,
            kind=Kind.REBASE,
            at_ms=1,
            owner="test",
            applied=None,
            covers=None,
            debt=debt,
        )
        headers, payload = encode_commit(commit)
        ack = await self.js.publish(self.subjects.commits(key), payload, headers)
        self.previous[key] = ack.sequence


@pytest.fixture
def log(js: JetStream, subjects: Subjects, topology: TopologyOptions) -> Log:
    return Log(js, subjects)


async def test_nothing_waits_nothing_is_published(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    assert await sweeper.sweep() == 0
    await log.append(A, debt=0)
    assert await sweeper.sweep() == 0
    assert await tasks(js, subjects) == set()


async def test_a_request_without_a_task_gets_one(sweeper: Sweeper, js: JetStream, subjects: Subjects) -> None:
    for key in (A, B):
        await js.publish(subjects.requests(key), b"")
    await publish_task(js, subjects, B)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A, B}
    assert await sweeper.sweep() == 0


async def test_a_request_that_is_decided_during_the_sweep_gets_no_task(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that creates a change set ends at once. A task would make another owner load all values for nothing."""
    names = Sweeper._names
    await log.append(C, debt=1)

    async def read(self: Sweeper, stream: str, head: str, tail: str) -> set[str]:
        if stream == subjects.tasks_stream:
            await js.purge(subjects.requests_stream, subjects.requests(A))
        return await names(self, stream, head, tail)

    monkeypatch.setattr(Sweeper, "_names", read)
    for key in (A, B):
        await js.publish(subjects.requests(key), b"")
    assert await sweeper.sweep() == 2
    assert await tasks(js, subjects) == {B, C}


async def test_debt_without_a_task_gets_one(sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log) -> None:
    await log.append(A, debt=3)
    await log.append(B, debt=1)
    await log.append(B, debt=0)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A}


async def test_debts_are_followed_from_sweep_to_sweep(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    await log.append(A, debt=1)
    assert await sweeper.sweep() == 1
    await drop_tasks(js, subjects)
    await log.append(A, debt=0)
    await log.append(B, debt=1)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {B}
    assert await sweeper.sweep() == 0, "its task is there"
    await drop_tasks(js, subjects)
    assert await sweeper.sweep() == 1, "a debt stays one until a commit says otherwise"


async def test_headers_that_are_late_are_waited_for(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence alone does not show that there are no more headers."""
    take, late = OrderedConsumer.take, [True]

    def take_late(self: OrderedConsumer, count: int) -> list[Message]:
        return [] if late and late.pop() else take(self, count)

    monkeypatch.setattr("rebaser.sweeper.debts.SILENCE", 0.0)
    monkeypatch.setattr(OrderedConsumer, "pending", property(lambda _: 0, lambda *_: None), raising=False)
    monkeypatch.setattr(OrderedConsumer, "delivered", property(lambda _: 0))
    monkeypatch.setattr(OrderedConsumer, "take", take_late)
    await log.append(A, debt=1)
    with anyio.fail_after(60):
        assert await sweeper.sweep() == 1


async def test_a_log_that_went_back_is_read_anew(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream was restored from an older backup: it is the same stream, and ends before what was read of it."""
    real, ahead = JetStream.stream_info, 10

    async def stream_info(self: JetStream, name: str) -> StreamInfo:
        info = await real(self, name)
        return replace(info, last_sequence=info.last_sequence + ahead)

    with monkeypatch.context() as patch:
        patch.setattr(JetStream, "stream_info", stream_info)
        await log.append(A, debt=1)
        assert await sweeper.sweep() == 1
    await log.append(B, debt=1)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A, B}


async def test_few_new_headers_are_left_to_the_sweep(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    debts = sweeper._debts
    await log.append(A, debt=1)
    assert not await debts.read_ahead(2)
    await log.append(B, debt=0)
    assert await debts.read_ahead(2)
    owing = await debts.read()
    await log.append(C, debt=1)
    assert not await debts.read_ahead(2)
    assert await debts.read() == {"ws.a", "ws.c"}
    assert owing == {"ws.a"}
    assert await sweeper.sweep() == 2
    assert await tasks(js, subjects) == {A, C}


async def test_headers_are_read_once_though_a_sweep_begins_meanwhile(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(A, debt=1)
    opened: list[object] = []
    real = OrderedConsumer.__init__

    def count(self: OrderedConsumer, *args: Any, **options: Any) -> None:
        opened.append(options["start"])
        real(self, *args, **options)

    monkeypatch.setattr(OrderedConsumer, "__init__", count)
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(sweeper._debts.read)
        group.start_soon(sweeper.sweep)
    assert opened == ["last_per_subject"]
    assert await tasks(js, subjects) == {A}


async def test_what_was_deleted_at_the_end_is_not_waited_for(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    await log.append(A, debt=1)
    await log.append(B, debt=1)
    await js.delete_message(subjects.commits_stream, log.previous[B])
    with anyio.fail_after(60):
        assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A}
    await log.append(C, debt=1)
    with anyio.fail_after(60):
        assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A, C}


async def test_a_foreign_message_on_the_log_is_passed_over(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    await js.publish(subjects.commits(A), b"?", {"X-Debt": "many"})
    await log.append(B, debt=1)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {B}


async def test_a_log_that_begins_anew_is_read_anew(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, topology: TopologyOptions
) -> None:
    await log.append(A, debt=1)
    assert await sweeper.sweep() == 1
    await js.call(f"STREAM.DELETE.{subjects.commits_stream}")
    await ensure_topology(js, subjects, topology)
    await drop_tasks(js, subjects)
    log.previous.clear()
    await log.append(B, debt=1)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {B}
