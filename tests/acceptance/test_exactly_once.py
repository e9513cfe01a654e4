"""A request that is sent again under its id gets its answer again, and is never applied twice."""

from asyncio import Future
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Commit, RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.nats.messages import Msg
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.encoding.envelope import MESSAGE_ID, REPLY_INBOX
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesResponse, Success, decode, encode
from rebaser_core.streams.subjects import Subjects
from tests.support.fleet import NO_SPARK, ServerProcess, servers
from tests.support.history import check_history, commits_of

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey.of("once", "main")
WS, CS = KEY.workspace, KEY.change_set
SUBJECTS = Subjects("")


class Raw:
    """Publishes the request and the task separately, so that tests can leave one out."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.js = JetStream(connection)

    async def publish(self, request_id: str, value: int, msg_id: str | None = None) -> tuple[bool, "Future[Msg]"]:
        """Store `set n=value`. Return whether the duplicate window dropped the request, and a future with the reply."""
        inbox, reply = self.connection.open_reply()
        headers, payload = encode(EnqueueUpdatesRequest(RequestId(request_id), WS, CS, (Set("n", value),)))
        headers |= {REPLY_INBOX: inbox, MESSAGE_ID: msg_id or f"{KEY}.{request_id}"}
        ack = await self.js.publish(SUBJECTS.requests(KEY), payload, headers)
        return ack.duplicate, reply

    async def wake(self) -> None:
        await publish_task(self.js, SUBJECTS, KEY)


async def answer(reply: "Future[Msg]") -> EnqueueUpdatesResponse:
    with anyio.fail_after(120):
        message = await reply
    return decode(message.headers, message.data, expect=EnqueueUpdatesResponse)


@asynccontextmanager
async def installation(
    nats: EmbeddedNats, **settings: object
) -> AsyncIterator[tuple[ServerProcess, RebaserClient, Raw]]:
    """Run one server without Spark, because nothing is derived."""
    given: dict[str, object] = {"spark": NO_SPARK, "quiescent_period": 600} | settings
    async with (
        servers(nats.url, "first", warm=False, **given) as [server],
        RebaserClient.connect(nats.url) as client,
        Connection.connect(nats.url, name="raw") as connection,
    ):
        yield server, client, Raw(connection)


async def first_and_second(client: RebaserClient) -> EnqueueUpdatesResponse:
    """Set `n` to 1, then to 2. Return the answer to the first request, which tests repeat."""
    first = await client.enqueue_updates_with_reply(WS, CS, [Set("n", 1)])
    await client.enqueue_updates_with_reply(WS, CS, [Set("n", 2)])
    return first


@asynccontextmanager
async def let_go(raw: Raw) -> AsyncIterator[None]:
    """At the end of the `with` block, wait until an owner has acked its task and the task is gone."""
    async with raw.connection.subscribe("$JS.ACK.REBASER_TASKS.>") as acks:
        await raw.js.stream_info(SUBJECTS.tasks_stream)  # The answer shows that the subscription exists.
        yield
        with anyio.fail_after(120):
            async for ack in acks:
                if ack.data == b"+ACK" and await raw.js.last(SUBJECTS.tasks_stream, SUBJECTS.task(KEY)) is None:
                    return


def decided(commits: list[Commit]) -> list[str]:
    return [decision.request_id for commit in commits for decision in commit.requests]


async def check_repeat(client: RebaserClient, raw: Raw, first: EnqueueUpdatesResponse, **how: str) -> None:
    """Publish the first request again, and check that it gets the same answer, and that nothing is decided again.

    Commits that decide nothing are allowed: an owner that replaces a dead one may record the attempt.
    """
    before = decided(await commits_of(client, WS, CS))
    swallowed, reply = await raw.publish(first.id, 1, **how)
    assert not swallowed, "the duplicate window did what this test is about"
    await raw.wake()
    assert await answer(reply) == first
    assert isinstance(first.status, Success)
    assert (await client.values(WS, CS))["n"].value == 2
    commits = await commits_of(client, WS, CS)
    assert decided(commits) == before
    check_history(commits)


async def test_again_after_a_restart_of_nats(own_nats: EmbeddedNats) -> None:
    """The duplicate window forgets messages that were deleted before the restart; the log does not. The server keeps
    running."""
    async with installation(own_nats) as (server, client, raw):
        first = await first_and_second(client)
        while (await raw.js.stream_info(SUBJECTS.requests_stream)).messages:
            await anyio.lowlevel.checkpoint()
        await own_nats.kill()
        await own_nats.start()
        await server.wait_for("nats_reconnected")
        await check_repeat(client, raw, first)
        again = await client.enqueue_updates_with_reply(WS, CS, [Set("n", 1)], request_id=first.id)
        assert again == first


async def test_again_after_the_duplicate_window(own_nats: EmbeddedNats) -> None:
    async with installation(own_nats, duplicate_window=0.2) as (_, client, raw):
        first = await first_and_second(client)
        swallowed = True
        with anyio.fail_after(120):
            while swallowed:  # until the window has ended and a repeated request is stored
                swallowed, reply = await raw.publish(first.id, 1)
        assert await answer(reply) == first
        await check_repeat(client, raw, first, msg_id="another")


async def test_again_through_the_client_within_the_duplicate_window(own_nats: EmbeddedNats) -> None:
    """A client that repeats an id needs its answer, so the duplicate window must not drop the request."""
    async with installation(own_nats) as (_, client, _raw):
        first = await first_and_second(client)
        again = await client.enqueue_updates_with_reply(WS, CS, [Set("n", 1)], request_id=first.id, timeout=60)
        assert again == first
        assert (await client.values(WS, CS))["n"].value == 2
        check_history(await commits_of(client, WS, CS))


async def test_again_to_a_fresh_owner_after_quiescence(own_nats: EmbeddedNats) -> None:
    async with installation(own_nats, quiescent_period=0.1) as (server, client, raw):
        async with let_go(raw):
            first = await first_and_second(client)
        owned = server.count("change_set_owned")
        await check_repeat(client, raw, first, msg_id="another")
        with anyio.fail_after(120):
            while server.count("change_set_owned") <= owned:
                await server.heard()


async def test_again_to_another_server(own_nats: EmbeddedNats) -> None:
    """The server that applied the request has ended for good."""
    async with installation(own_nats) as (server, client, raw):
        first = await first_and_second(client)
        await server.kill()
        async with servers(own_nats.url, "second", warm=False, spark=NO_SPARK, ack_wait=2):
            await check_repeat(client, raw, first, msg_id="another")


async def test_many_copies_in_the_queue_at_once_are_one_request(own_nats: EmbeddedNats) -> None:
    async with installation(own_nats) as (_, client, raw):
        replies = [(await raw.publish("twin", 1, f"copy-{number}"))[1] for number in range(5)]
        await raw.wake()
        answers = [await answer(reply) for reply in replies]
        assert answers == [answers[0]] * 5
        check_history(await commits_of(client, WS, CS), ["twin"])


async def test_a_request_whose_task_was_lost_is_applied_at_the_next_wake(own_nats: EmbeddedNats) -> None:
    """The client has died between the request and the task."""
    async with installation(own_nats) as (_, client, raw):
        _, reply = await raw.publish("lost", 1)
        second = await client.enqueue_updates_with_reply(WS, CS, [Set("n", 2)])
        first = await answer(reply)
        assert isinstance(first.status, Success)
        assert (await client.values(WS, CS))["n"].value == 2
        check_history(await commits_of(client, WS, CS), ["lost", second.id])


async def test_a_caller_who_is_cancelled_right_after_sending_leaves_no_request_behind(own_nats: EmbeddedNats) -> None:
    """The request came after the owner's last check of the queue, and so soon after an answer that no task was
    published."""
    async with installation(own_nats, quiescent_period=0.05) as (_, client, raw):
        async with let_go(raw):
            await client.enqueue_updates_with_reply(WS, CS, [Set("n", 0)])
        before = (await client.state(WS, CS)).last
        with anyio.CancelScope() as scope:

            async def call() -> None:
                await client.enqueue_updates_with_reply(WS, CS, [Set("n", 1)], request_id="left")
                scope.cancel()  # the answer came before the request was seen

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                while not await raw.js.last(SUBJECTS.requests_stream, SUBJECTS.requests(KEY)):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        with anyio.fail_after(120):
            async for commit in client.watch(WS, CS, after=before):
                if [decision.request_id for decision in commit.requests] == ["left"]:
                    break
        assert (await client.values(WS, CS))["n"].value == 1
