"""Every status that can end a pull, sent by a scripted server, and how `consume` and `fetch` react."""

from collections.abc import Callable
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from rebaser_client.jetstream import (
    Connection,
    ConsumerDeletedError,
    NoAnswerError,
    NoRespondersError,
    PullConsumer,
    PullRefusedError,
    PullWarning,
)
from rebaser_client.nats.errors import NotConnectedError
from tests.conftest import Events
from tests.support.scripted_nats import ScriptedNats, scripted

pytestmark = pytest.mark.anyio

SILENT = [
    "404 No Messages",
    "408 Request Timeout",
    "408 Interest Expired",
    "409 Batch Completed",
    "423 Nats-Wrong-Pin-Id",
    "423 Nats-Pin-Id mismatch",
]
WARNED = [
    "400 Bad Request - no",
    "409 Exceeded MaxRequestBatch of 5",
    "409 Exceeded MaxRequestExpires of 1s",
    "409 Exceeded MaxRequestMaxBytes of 5",
    "409 Exceeded MaxWaiting",
    "409 Leadership Change",
    "409 Server Shutdown",
    "503",
    "412 Required Api Level",
]
FINAL = [("409 Consumer Deleted", ConsumerDeletedError), ("409 Consumer is push based", PullRefusedError)]


async def test_a_pull_asks_for_all_that_the_options_say() -> None:
    async with scripted() as (server, consumer):
        async with consumer.consume(max_messages=7, expires=4, idle_heartbeat=1):
            assert (await server.pull()).body == {
                "batch": 7,
                "expires": 4_000_000_000,
                "idle_heartbeat": 1_000_000_000,
            }
        async with consumer.consume():
            body = (await server.pull()).body
            assert body == {"batch": 500, "expires": 30_000_000_000, "idle_heartbeat": 15_000_000_000}
        async with consumer.consume(expires=90):
            assert (await server.pull()).body["idle_heartbeat"] == 30_000_000_000
        async with consumer.consume(expires=1):
            assert (await server.pull()).body["idle_heartbeat"] == 500_000_000
        async with consumer.consume(max_bytes=1000):
            body = (await server.pull()).body
            assert (body["batch"], body["max_bytes"]) == (1_000_000, 1000)
        async with consumer.fetch(3):
            assert (await server.pull()).body == {"batch": 3, "expires": 30_000_000_000}
        async with consumer.fetch(max_bytes=3, expires=31):
            body = (await server.pull()).body
            assert (body["max_bytes"], body["idle_heartbeat"]) == (3, 15_500_000_000)


async def test_one_subscription_serves_all_pulls() -> None:
    async with scripted() as (server, consumer), consumer.consume(max_messages=2) as messages:
        inboxes = set()
        for turn in range(20):
            pull = await server.pull()
            inboxes.add(pull.reply.rpartition(".")[0])
            await pull.message(turn)
            await anext(messages)
        (inbox,) = inboxes
        assert server.subscriptions.count(f"{inbox}.*") == 1


@pytest.mark.parametrize("line", SILENT)
async def test_consume_goes_on_without_a_word(line: str, events: Events) -> None:
    told: list[PullWarning] = []
    async with scripted() as (server, consumer), consumer.consume(max_messages=10, on_warning=told.append) as messages:
        first = await server.pull()
        await first.message(1)
        await first.status(line, pending_messages=9, pending_bytes=0)
        again = await server.pull()
        assert again.body["batch"] == 9  # one message waits in the buffer
        assert (await anext(messages)).stream_sequence == 1
        await again.message(2)
        assert (await anext(messages)).stream_sequence == 2
    assert not told
    assert not [entry for entry in events.entries if entry["event"].startswith(("pull_refused", "pull_failed"))]


@pytest.mark.parametrize("line", WARNED)
async def test_consume_tells_and_goes_on(line: str, events: Events) -> None:
    told: list[PullWarning] = []
    async with scripted() as (server, consumer), consumer.consume(max_messages=10, on_warning=told.append) as messages:
        await (await server.pull()).status(line)
        again = await server.pull()
        assert again.body["batch"] == 10
        await again.message(1)
        assert (await anext(messages)).stream_sequence == 1
    assert [f"{warned.status} {warned.reason}".strip() for warned in told] == [line]
    assert len(events.named("pull_failed" if line.startswith("400") else "pull_refused")) == 1


@pytest.mark.parametrize(("line", "error"), FINAL)
async def test_consume_ends_after_what_came(line: str, error: type[Exception]) -> None:
    async with scripted() as (server, consumer), consumer.consume(max_messages=10) as messages:
        pull = await server.pull()
        await pull.message(1)
        await pull.status(line)
        assert (await anext(messages)).stream_sequence == 1
        with pytest.raises(PullRefusedError) as ended:
            await anext(messages)
        assert type(ended.value) is error
        assert ended.value.description == line[4:]
        assert [message async for message in messages] == []
        assert not server.waiting_pulls


async def test_heartbeats_do_nothing_but_their_absence_does() -> None:
    told: list[PullWarning] = []
    options = {"expires": 1.0, "idle_heartbeat": 0.5}
    async with scripted() as (server, consumer), consumer.consume(on_warning=told.append, **options) as messages:  # type: ignore[arg-type]
        pull = await server.pull()
        await pull.status("100 Idle Heartbeat")
        assert messages.outstanding == 500
        again = await server.pull()
        assert [warned.event for warned in told] == ["pull_heartbeats_missed"]
        await pull.status("408 Request Timeout", pending_messages=500)  # too late to have an effect
        await again.message(1)
        assert (await anext(messages)).stream_sequence == 1
        assert messages.outstanding == 499


async def test_what_comes_while_a_silent_inbox_is_replaced_is_neither_lost_nor_asked_for_again() -> None:
    options = {"expires": 1.0, "idle_heartbeat": 0.5}
    async with scripted() as (server, consumer), consumer.consume(max_messages=5, **options) as messages:  # type: ignore[arg-type]
        pull = await server.pull()
        server.before_unsubscribed = partial(pull.message, 1)
        assert (await server.pull()).body["batch"] == 4
        assert (await anext(messages)).stream_sequence == 1


@pytest.mark.parametrize("stops", [1, 2])
async def test_what_comes_while_it_is_stopped_is_given_back_at_once(stops: int) -> None:
    async with scripted() as (server, consumer):
        messages = consumer.consume(max_messages=5)
        async with messages, anyio.create_task_group() as group:
            server.before_unsubscribed = partial((await server.pull()).message, 1)
            for _ in range(stops):
                group.start_soon(messages.stop)
        await given_back(server)


async def test_what_came_is_given_back_though_who_stops_is_cancelled() -> None:
    async with scripted() as (server, consumer):
        messages = consumer.consume(max_messages=5)
        async with messages:
            await (await server.pull()).message(1)
            while not messages.buffered:
                await anyio.lowlevel.checkpoint()
            with anyio.CancelScope() as scope:
                scope.cancel()
                await messages.stop()
            await given_back(server)


async def given_back(server: ScriptedNats) -> None:
    with anyio.fail_after(60):
        while b"-NAK" not in [body for _, body in server.published]:  # noqa: ASYNC110 - an entry in a list sets no event
            await anyio.sleep(0.01)


async def test_an_inbox_that_cannot_be_listened_on_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    listen, refused = Connection.listen, 0

    async def listens(self: Connection, *args: object, **more: object) -> object:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise NotConnectedError("just now")
        return await listen(self, *args, **more)  # type: ignore[arg-type]

    options = {"max_messages": 10, "expires": 1.0, "idle_heartbeat": 0.5}
    async with scripted() as (server, consumer), consumer.consume(**options) as messages:  # type: ignore[arg-type]
        await server.pull()
        monkeypatch.setattr(Connection, "listen", listens)
        await (await server.pull()).message(1)
        assert (await anext(messages)).stream_sequence == 1
    assert refused == 2


async def test_a_message_larger_than_max_bytes_is_told_of_and_waited_out() -> None:
    told: list[PullWarning] = []
    async with scripted() as (server, consumer), consumer.consume(max_bytes=500, on_warning=told.append) as messages:
        await (await server.pull()).status("409 Message Size Exceeds MaxBytes", pending_bytes=500)
        again = await server.pull()
        assert "larger than the 500 bytes" in told[0].reason
        await again.message(1)
        assert (await anext(messages)).stream_sequence == 1


async def test_sizes_are_counted_as_the_server_counts_them() -> None:
    async with scripted() as (server, consumer), consumer.consume(max_bytes=1000) as messages:
        pull = await server.pull()
        await pull.message(1, b"12345", b"A:  b\r\nA:c")  # with spaces that Rebaser's client would not write
        size = len("s.a") + len("$JS.ACK.S.C.1.1.1.1700000000000000000.0") + len("NATS/1.0\r\nA:  b\r\nA:c\r\n\r\n") + 5
        message = await anext(messages)
        assert message.data == b"12345"
        assert messages.outstanding == 1000 - size


async def test_a_pin_is_sent_until_it_is_refused() -> None:
    told: list[str] = []
    config = {"priority_groups": ["g"], "priority_policy": "pinned_client"}
    async with scripted(**config) as (server, consumer):
        options = {"on_pinned": told.append, "on_unpinned": lambda: told.append("none")}
        async with consumer.consume(max_messages=1, group="g", **options) as messages:  # type: ignore[arg-type]
            pull = await server.pull()
            assert (pull.body["group"], pull.body.get("id")) == ("g", None)
            await pull.message(1, headers=b"Nats-Pin-Id: p1")
            await anext(messages)
            pull = await server.pull()
            assert pull.body["id"] == "p1"
            await pull.status("423 Nats-Pin-Id mismatch")
            assert "id" not in (await server.pull()).body
    assert told == ["p1", "none"]


async def test_a_pull_that_the_first_message_of_a_pin_makes_due_names_it() -> None:
    async with scripted() as (server, consumer), PullConsumer(consumer._js, "S", "C", group="g") as pull:
        pull.add_credit(3)
        first = await server.pull()
        pull.add_credit(2)
        await first.message(1, headers=b"Nats-Pin-Id: p1")
        again = await server.pull()
        assert (again.body["batch"], again.body["id"]) == (2, "p1")


async def test_a_pull_that_was_given_up_before_it_was_sent_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "publish_now", lambda *_, **__: False)  # as without a connection
    async with scripted() as (server, consumer), consumer.consume(max_messages=10) as messages:
        first = await server.pull()
        messages._reconnected()
        messages._reconnected()  # before the first pull could be sent
        again = await server.pull()
        assert int(again.reply.rpartition(".")[2]) == int(first.reply.rpartition(".")[2]) + 2


async def test_a_cut_connection_is_pulled_on_again_and_nobody_is_asked_whether_the_consumer_is_there() -> None:
    async with scripted() as (server, consumer), consumer.consume(max_messages=10) as messages:
        await (await server.pull()).message(1)
        await anext(messages)
        await server.cut()
        again = await server.pull()
        assert again.body["batch"] == 10
        await again.message(2)
        assert (await anext(messages)).stream_sequence == 2
    assert server.published == []


async def test_one_who_wants_it_has_the_consumer_asked_for_after_a_cut() -> None:
    async with scripted() as (server, consumer), consumer.consume(max_messages=10, end_when_gone=True):
        await server.pull()
        assert server.published == []
        await server.cut()
        await server.pull()
        with anyio.fail_after(60):
            while not server.published:
                await anyio.lowlevel.checkpoint()
    assert [subject for subject, _ in server.published] == ["$JS.API.CONSUMER.INFO.S.C"]


async def test_a_callback_that_fails_ends_nothing(events: Events) -> None:
    def fail(_: PullWarning) -> None:
        raise ZeroDivisionError

    async with scripted() as (server, consumer), consumer.consume(on_warning=fail) as messages:
        await (await server.pull()).status("409 Exceeded MaxWaiting")
        await (await server.pull()).message(1)
        assert (await anext(messages)).stream_sequence == 1
    assert events.named("pull_callback_failed")


# -- fetch and next ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [*SILENT, "409 Message Size Exceeds MaxBytes"])
async def test_fetch_ends_with_what_came(line: str) -> None:
    async with scripted() as (server, consumer), consumer.fetch(10) as batch:
        pull = await server.pull()
        await pull.message(1)
        await pull.status(line)
        assert [message.stream_sequence async for message in batch] == [1]
        assert not server.waiting_pulls


@pytest.mark.parametrize("line", [*WARNED, *(line for line, _ in FINAL)])
async def test_fetch_says_why_it_was_refused_after_what_came(line: str) -> None:
    async with scripted() as (server, consumer), consumer.fetch(10) as batch:
        pull = await server.pull()
        await pull.message(1)
        await pull.status(line)
        assert (await anext(batch)).stream_sequence == 1
        with pytest.raises((PullRefusedError, NoRespondersError)):
            await anext(batch)
        assert [message async for message in batch] == []


async def test_fetch_is_over_in_time_whatever_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebaser_client.jetstream.pull.state.GRACE", 0.5)
    async with scripted() as (server, consumer):
        with pytest.raises(NoAnswerError, match="did not end a pull"):
            await consumer.next(expires=0.1)
        with pytest.raises(NoAnswerError, match="no heartbeats"):
            await consumer.next(expires=30, idle_heartbeat=0.5)
        batch = consumer.fetch(3, expires=20)
        async with batch, anyio.create_task_group() as group:
            pull = await server.pull()
            while pull.body["expires"] != 20_000_000_000:
                pull = await server.pull()
            await pull.message(1)
            assert (await anext(batch)).stream_sequence == 1
            group.start_soon(server.cut)
            with pytest.raises(NotConnectedError):
                await anext(batch)


async def test_next_waits_for_a_connection_no_longer_than_for_a_message() -> None:
    async with scripted() as (server, consumer):
        await server.refuse()
        while consumer._js.connection.connected:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(NotConnectedError, match=r"no connection to NATS for 0\.1 s"):
            await consumer.next(expires=0.1)


async def test_next_is_one_message_or_none() -> None:
    async with scripted() as (server, consumer), anyio.create_task_group() as group:
        got: list[int | None] = []

        async def take() -> None:
            message = await consumer.next()
            got.append(None if message is None else message.stream_sequence)

        answers: list[Callable[..., object]] = []
        group.start_soon(take)
        pull = await server.pull()
        answers.append(pull.message)
        assert pull.body["batch"] == 1
        await pull.message(1)
        group.start_soon(take)
        await (await server.pull()).status("408 Request Timeout", pending_messages=1)
    assert got == [1, None]
