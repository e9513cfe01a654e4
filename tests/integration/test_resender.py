"""Answers and confirmations that get lost: the client sends the request again under the same id, and not often."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import RebaserClient, RequestTimeout, Set
from rebaser_client.jetstream import JetStream, OrderedConsumer
from rebaser_client.requests import resender, sender
from rebaser_client.requests.resender import Resender
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesResponse, Success, encode
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.nats_proxy import Frame, Proxy, proxied

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")
BOUND = 60  # seconds; a bound against hanging


@pytest.fixture
async def client(proxy: Proxy, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(proxy.url, prefix=subjects.prefix) as connected:
        yield connected


@pytest.fixture
async def queue(js: JetStream, subjects: Subjects) -> AsyncIterator[OrderedConsumer]:
    """The consumer with which an owner reads the queue."""
    async with OrderedConsumer(js, subjects.requests_stream, subjects.requests(KEY)) as consumer:
        yield consumer


class Looks:
    """Counts the client's reads of the queue, and those that were not due yet."""

    def __init__(self, look_at: Callable[..., Awaitable[None]]) -> None:
        self._check_queue = look_at
        self._wanted: dict[int, anyio.Event] = {}
        self.count = self.early = 0

    async def __call__(self, *args: Any) -> None:
        self.early += args[2].due > anyio.current_time()
        await self._check_queue(*args)
        self.count += 1
        if self.count in self._wanted:
            self._wanted[self.count].set()

    async def reach(self, count: int) -> None:
        if self.count < count:
            await self._wanted.setdefault(count, anyio.Event()).wait()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    counter = Looks(Resender._check_queue)

    async def look_at(self: Resender, *args: Any) -> None:
        await counter(self, *args)

    monkeypatch.setattr(Resender, "_check_queue", look_at)
    monkeypatch.setattr(resender, "PATIENCE", 0.05)
    monkeypatch.setattr(resender, "PAUSE_MAX", 0.4)
    return counter


async def ask(client: RebaserClient, answers: list[EnqueueUpdatesResponse], request_id: str = "r") -> None:
    answers.append(await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], request_id=request_id))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nothing tells when
        await anyio.sleep(0.01)


async def answer(js: JetStream, inbox: str) -> None:
    headers, payload = encode(EnqueueUpdatesResponse(RequestId("r"), "ws", "cs", Success(0, 7)))
    await js.connection.publish(inbox, payload, headers)


async def test_a_request_that_left_the_queue_unanswered_is_sent_again_and_one_that_waits_is_not(
    client: RebaserClient, js: JetStream, subjects: Subjects, queue: OrderedConsumer, looks: Looks
) -> None:
    answers: list[EnqueueUpdatesResponse] = []
    stream = subjects.requests_stream
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, client, answers)
            first = await anext(queue)
            await looks.reach(3)
            assert (await js.stream_info(stream)).messages == 1
            await js.purge(subjects.tasks_stream, subjects.task(KEY))  # its owner has ended
            await js.delete_message(stream, first.stream_sequence)
            again = await anext(queue)
            while await js.last(subjects.tasks_stream, subjects.task(KEY)) is None:  # noqa: ASYNC110 - nothing tells when
                await anyio.sleep(0.01)
            assert again.data == first.data
            assert again.headers[REPLY_INBOX] == first.headers[REPLY_INBOX]
            await js.delete_message(stream, again.stream_sequence)  # the second answer was lost, too
            third = await anext(queue)
            await answer(js, third.headers[REPLY_INBOX])
    assert [answer.status for answer in answers] == [Success(0, 7)]
    assert await js.subject_counts(subjects.tasks_stream, subjects.task(KEY)) == {subjects.task(KEY): 1}


async def test_who_asks_after_all_were_answered_is_looked_after_too(
    client: RebaserClient, js: JetStream, subjects: Subjects, queue: OrderedConsumer, looks: Looks
) -> None:
    answers: list[EnqueueUpdatesResponse] = []
    with anyio.fail_after(BOUND):
        for request_id in ("r", "s"):
            async with anyio.create_task_group() as group:
                group.start_soon(ask, client, answers, request_id)
                first = await anext(queue)
                await js.delete_message(subjects.requests_stream, first.stream_sequence)
                again = await anext(queue)
                await js.delete_message(subjects.requests_stream, again.stream_sequence)
                await answer(js, again.headers[REPLY_INBOX])
            await until(lambda: not client._resender._running)
    assert len(answers) == 2


async def test_a_slow_queue_is_looked_at_ever_more_seldom_however_many_wait_in_it(
    client: RebaserClient, queue: OrderedConsumer, looks: Looks, events: Events
) -> None:
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(ask, client, [], f"r{number}")
            for _ in range(50):
                await anext(queue)
            before, pauses = looks.count, []
            for more in range(1, 6):
                await looks.reach(before + more)
                pauses.append(client._resender._queues[KEY].pause)
            group.cancel_scope.cancel()
    assert pauses == sorted(pauses)
    assert pauses[-1] == resender.PAUSE_MAX
    assert looks.early == 0
    assert events.named("answer_lost") == []
    assert client._resender._queues == {}


async def test_a_new_connection_asks_at_once_for_what_was_said_to_the_old_one(
    client: RebaserClient,
    js: JetStream,
    subjects: Subjects,
    queue: OrderedConsumer,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resender, "PATIENCE", 10 * BOUND)
    answers: list[EnqueueUpdatesResponse] = []
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, client, answers)
            first = await anext(queue)
            await until(lambda: bool(client._resender._queues))  # the client knows that its request is stored
            proxy.lose = lambda frame: frame.subject == first.headers[REPLY_INBOX]
            await answer(js, first.headers[REPLY_INBOX])
            await js.delete_message(subjects.requests_stream, first.stream_sequence)
            await proxy.cut()
            again = await anext(queue)
            proxy.lose = lambda _: False
            await answer(js, again.headers[REPLY_INBOX])
    assert len(answers) == 1


async def test_a_new_connection_asks_once(
    client: RebaserClient,
    js: JetStream,
    queue: OrderedConsumer,
    proxy: Proxy,
    looks: Looks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It must not ask repeatedly while the request is queued: that would keep the client and NATS busy."""
    monkeypatch.setattr(resender, "PATIENCE", 10 * BOUND)
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, client, [])
            first = await anext(queue)
            await until(lambda: bool(client._resender._queues))
            await proxy.cut()
            await looks.reach(1)
            for _ in range(20):  # round trips; another read would take two
                await js.get(first.stream, first.stream_sequence)
            group.cancel_scope.cancel()
    assert looks.count == 1


async def test_what_servers_may_have_forgotten_is_not_sent_again(
    client: RebaserClient,
    js: JetStream,
    subjects: Subjects,
    queue: OrderedConsumer,
    looks: Looks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log may have forgotten its outcome, and it would be applied twice."""
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, client, [])
            first = await anext(queue)
            await looks.reach(1)
            monkeypatch.setattr(sender, "REPEAT_FOR", -1.0)  # as if it had last been seen in the queue long ago
            await looks.reach(3)
            await js.delete_message(subjects.requests_stream, first.stream_sequence)
            await until(lambda: not client._resender._queues)
            group.cancel_scope.cancel()
    info = await js.stream_info(subjects.requests_stream)
    assert (info.messages, info.last_sequence) == (0, 1)


class LostAcks:
    """Loses the confirmations that a message was stored, the first `count` times."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, frame: Frame) -> bool:
        if self.left and b'"stream"' in frame.payload and b'"seq"' in frame.payload:
            self.left -= 1
            return True
        return False


async def test_a_request_whose_storing_was_not_confirmed_is_stored_once(
    client: RebaserClient, js: JetStream, subjects: Subjects, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "PUBLISH_TIMEOUT", 0.2)
    proxy.lose = lost = LostAcks(2)
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    assert lost.left == 0
    assert await js.subject_counts(subjects.requests_stream, subjects.requests(KEY)) == {subjects.requests(KEY): 1}


async def test_a_request_that_may_be_stored_is_not_said_to_be_unsent(
    nats_server: EmbeddedNats, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the connection is lost."""
    monkeypatch.setattr(sender, "PUBLISH_TIMEOUT", 0.2)
    lost = anyio.Event()
    async with proxied(nats_server.port) as proxy, RebaserClient.connect(proxy.url, prefix=subjects.prefix) as client:

        def lose(frame: Frame) -> bool:
            if is_ack := LostAcks(1)(frame):
                proxy.delay = lambda _: BOUND  # a new connection gets no answer
                lost.set()
            return is_ack

        async def cut() -> None:
            await lost.wait()
            await proxy.cut()

        proxy.lose = lose
        async with anyio.create_task_group() as group:
            group.start_soon(cut)
            with pytest.raises(RequestTimeout):
                await client.enqueue_updates("ws", "cs", [Set("a", 1)], timeout=6)
