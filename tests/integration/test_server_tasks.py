"""A server's tasks: requested as slots become free, kept while they wait, given back if the server cannot work on
them."""

from typing import cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser.change_set.lease import Lease, Task
from rebaser.change_set.lifecycle import Reason
from rebaser.change_set.owner import Owner
from rebaser.change_set.readers.request_reader import RequestReader
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser.sweeper.unroutable import UNROUTABLE_KEY
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream, PullConsumer, PullMessage
from rebaser_client.log.reader import LoadedState, StateLoader
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import Success
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.owners import Engine, serving

KEY = ChangeSetKey("ws", "cs")

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_a_task_that_names_no_change_set_goes_to_the_dead_letters(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that fails, the server continues, and the task is redelivered."""
    real, failing = DeadLetterPublisher.publish, [True]

    async def publish(self: DeadLetterPublisher, *args: object) -> None:
        if failing:
            failing.pop()
            raise NotConnectedError("there is no connection to NATS")
        await real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DeadLetterPublisher, "publish", publish)
    await js.publish(f"{subjects.root}.tasks.ws.$.process", b"", {"X-Mine": "kept"})
    async with serving(js, subjects, Engine(), concurrency=1, quiescent_period=0.1):
        await events.wait_for(lambda entry: entry["event"] == "task_refusal_failed")
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        await js.publish(f"{subjects.root}.tasks.$.cs.process", b"")
        while await js.last(subjects.tasks_stream, f"{subjects.root}.tasks.$.cs.process"):
            await checkpoint()
    letter = await js.last(subjects.dlq_stream, subjects.dlq(UNROUTABLE_KEY))
    assert letter is not None
    assert letter.headers["X-Original-Subject"] == f"{subjects.root}.tasks.$.cs.process"
    assert letter.headers["X-Reason-Code"] == "invalid_id"


async def test_a_task_that_comes_while_its_owner_lets_go_has_an_owner_at_once(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, it would be redelivered only after its ack wait."""
    releasing, let_go = anyio.Event(), anyio.Event()

    async def release(_: Lease) -> None:
        releasing.set()
        await let_go.wait()

    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        with monkeypatch.context() as patch:
            patch.setattr(Lease, "release", release)
            owner.stop(Reason.YIELD)
            await releasing.wait()
            reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
            server._tasks_requested += 1
            server._accept(PullMessage(subjects.task(KEY), reply, b"", None, js))
            let_go.set()
            while server._owners.get(KEY) is owner:
                await checkpoint()
        successor = server._owners[KEY]
        assert successor.lease.task.sequence == 7
        assert not server._successor_tasks


async def test_a_server_that_was_paused_for_longer_than_its_lease_lets_go(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    async with serving(js, subjects, Engine(), ack_wait=6) as server:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        owner = server._owners[KEY]
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "lease_lost")
            server._kept_alive_at -= 8.0
        assert owner.lease.lost


@pytest.mark.parametrize("waiting", ["_successor_tasks", "_held"])
async def test_a_task_that_waits_for_an_owner_is_kept(js: JetStream, subjects: Subjects, waiting: str) -> None:
    """Otherwise, it would be delivered to another server meanwhile, and both would own the change set."""
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    getattr(server, waiting)[KEY] = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    started, server._kept_alive_at = server._kept_alive_at, server._kept_alive_at - 1.0
    with anyio.fail_after(60):
        async with js.connection.subscribe(reply) as said, anyio.create_task_group() as group:
            group.start_soon(server._keepalive_loop)
            assert (await anext(said)).data == b"+WPI"
            group.cancel_scope.cancel()
    assert server._kept_alive_at >= started, "otherwise the server would take itself for one that was paused"


@pytest.mark.parametrize("waiting", ["_successor_tasks", "_held"])
async def test_a_task_that_waits_for_an_owner_is_given_back_by_a_server_that_stops(
    js: JetStream, subjects: Subjects, waiting: str
) -> None:
    """Otherwise, no other server would get it before its ack wait is over."""
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    getattr(server, waiting)[KEY] = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    with anyio.fail_after(60):
        async with js.connection.subscribe(reply) as said:
            async with anyio.create_task_group() as owners:
                await server._shut_down(owners)
            await js.connection.publish(reply, b"nothing was said")
            assert (await anext(said)).data == b"-NAK"


@pytest.mark.parametrize("waiting", ["_successor_tasks", "_held"])
async def test_a_task_that_waits_is_let_go_with_the_leases_of_a_server_that_was_paused(
    js: JetStream, subjects: Subjects, events: Events, waiting: str
) -> None:
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    getattr(server, waiting)[KEY] = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    server._kept_alive_at -= 3600.0
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(server._keepalive_loop)
            await events.wait_for(lambda entry: entry["event"] == "lease_lost")
            group.cancel_scope.cancel()
    assert not getattr(server, waiting)


class Pull:
    """Counts the tasks that are requested."""

    def __init__(self) -> None:
        self.credit = 0

    def add_credit(self, number: int) -> None:
        self.credit += number


async def test_a_task_is_asked_for_once_for_each_slot(js: JetStream, subjects: Subjects) -> None:
    """More would keep tasks from servers that have room for them."""
    server = Server(context_of(js, subjects, Settings(server_id="test", concurrency=5), Engine()))
    pull = Pull()
    server._pull = cast("PullConsumer", pull)
    for _ in range(2):
        server._fill_slots()
        assert pull.credit == 5
    server._slots_taken, server._tasks_requested = 2, 2
    for _ in range(2):
        server._fill_slots()
        assert pull.credit == 6
    server._slots_taken, server._tasks_requested, server._overbooked = 5, 0, 1
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    server._held[KEY] = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    server._fill_slots()
    assert pull.credit == 6


async def test_what_was_lost_with_its_stream_is_forgotten(js: JetStream, subjects: Subjects) -> None:
    server = Server(context_of(js, subjects, Settings(server_id="test"), Engine()))
    reply = f"$JS.ACK.{subjects.tasks_stream}.none.1.7.7.1.0"
    task = Task(KEY, PullMessage(subjects.task(KEY), reply, b"", None, js), js)
    server._held[KEY] = server._successor_tasks[KEY] = task
    server._context.deleter.add([1], "created")
    server.streams_lost({subjects.commits_stream: 2_000_001})
    assert (len(server._held), len(server._successor_tasks), server._context.deleter._queue) == (1, 1, [1])
    server.streams_lost({subjects.tasks_stream: 2_000_001, subjects.requests_stream: 2_000_001})
    assert (len(server._held), len(server._successor_tasks), server._context.deleter._queue) == (0, 0, [])


async def test_a_server_whose_slots_are_taken_asks_for_no_task(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = anyio.Event()

    async def read(*_: object) -> None:
        reading.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(RequestReader, "read", read)
    async with serving(js, subjects, Engine(), concurrency=1) as server:
        assert server._pull is not None
        assert server._pull.outstanding == 1
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        await reading.wait()
        assert server._pull.outstanding == 0


async def test_an_owner_that_breaks_leaves_its_slot_to_the_next(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Owner._load

    async def break_at_first(owner: Owner) -> None:
        monkeypatch.setattr(Owner, "_load", load)
        raise ZeroDivisionError

    monkeypatch.setattr(Owner, "_load", break_at_first)
    given_back, nak = list[float](), Task.nak

    async def note(task: Task, delay: float) -> None:
        given_back.append(delay)
        await nak(task, delay)

    monkeypatch.setattr(Task, "nak", note)
    async with serving(js, subjects, Engine(), concurrency=1):
        response = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        assert given_back == [0.0], "otherwise the task would come again only when its ack wait is over"
    assert isinstance(response.status, Success)
    assert len(events.named("owner_failed")) == 1


async def test_a_task_that_fails_comes_again_at_once_and_only_then_later_and_later(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first failure may be accidental. If failures continue, loading everything again and again would only cost
    time."""
    delays: list[float] = []
    real, tried_often = JetStream.nak, anyio.Event()

    async def nak(self: JetStream, message: PullMessage, delay: float = 0.0) -> None:
        if message.subject == subjects.task(KEY):
            delays.append(delay)
            delay = min(delay, 0.01)
            if len(delays) == 5:
                tried_often.set()
        await real(self, message, delay)

    async def load(*_: object) -> LoadedState:
        raise TransientError("the blob store is away")

    async with serving(js, subjects, Engine()) as server:
        monkeypatch.setattr(JetStream, "nak", nak)
        monkeypatch.setattr(StateLoader, "load", load)
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        with anyio.fail_after(60):
            await tried_often.wait()
        assert delays[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
        assert server.snapshot().trouble == "the blob store is away"
        assert not server.snapshot().missing


async def test_a_change_set_that_takes_longer_to_load_than_a_turn_gets_its_turn(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two change sets want one slot. Otherwise, each would release it as soon as it is loaded, for ever."""
    monkeypatch.setattr("rebaser.server.CROWD_CHECK", 0.02)
    real = StateLoader.load

    async def load(self: StateLoader, key: ChangeSetKey) -> LoadedState:
        await anyio.sleep(0.3)
        return await real(self, key)

    monkeypatch.setattr(StateLoader, "load", load)
    async with serving(js, subjects, Engine(), concurrency=1, turn=0.2):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for name in ("one", "two"):
                    group.start_soon(client.enqueue_updates_with_reply, "ws", name, [Set("a", 1)])
