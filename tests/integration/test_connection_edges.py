"""Edge cases of connections and JetStream calls: what a failure leaves behind, and how long a call waits."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from rebaser_client.jetstream import ApiError, Connection, JetStream, Message, NoRespondersError, context
from rebaser_client.nats.errors import NotConnectedError
from rebaser_client.nats.link import Link
from rebaser_core.errors import UnprocessableError
from rebaser_core.streams.subjects import Subjects
from tests.support.scripted_nats import ScriptedNats

pytestmark = pytest.mark.anyio


@pytest.fixture
async def name(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    """A name for a stream that the test creates."""
    yield subjects.prefix
    await js.delete_stream(subjects.prefix)


def config(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "subjects": [f"{name}.>"], "storage": "memory", "num_replicas": 1, "discard": "new", **more}


async def test_a_subscription_that_could_not_begin_or_has_ended_leaves_nothing_behind(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(*_: object) -> None:
        raise AssertionError

    link = connection._link
    assert link is not None
    before = list(connection._subscriptions), list(link._parser.handlers)
    with pytest.raises(UnprocessableError):
        await connection.listen("a b", handle)
    subscription = await connection.listen(connection.new_inbox(), handle)
    await subscription.close()
    subscribe = link.subscribe

    async def close_meanwhile(*given: Any) -> Any:
        made = await subscribe(*given)
        await list(connection._subscriptions)[-1].close()
        return made

    monkeypatch.setattr(link, "subscribe", close_meanwhile)
    subject = connection.new_inbox()
    await connection.listen(subject, handle)
    with pytest.raises(NoRespondersError):
        await connection.request(subject)
    assert (list(connection._subscriptions), list(link._parser.handlers)) == before


async def test_servers_that_are_tried_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    async def refuse(_: Link, __: object, ___: str, ____: object, seconds: float) -> None:
        shares.append(seconds)
        raise NotConnectedError("nobody answers")

    monkeypatch.setattr(Link, "_open", refuse)
    with pytest.raises(NotConnectedError):
        async with Connection.connect("nats://a,nats://b,nats://c", timeout=6.0):
            pass
    assert shares == [2.0] * 3


async def test_a_client_that_was_too_busy_to_send_its_credentials_tries_again() -> None:
    """Otherwise, a command would fail because its machine stalled for two seconds."""
    server, tries = ScriptedNats(0), 0

    async def refuse_two(client: SocketStream) -> None:
        nonlocal tries
        tries += 1
        if tries > 2:
            await server.serve(client)
        else:
            async with client:
                await client.send(b'INFO {"server_id": "X", "version": "2.15.0", "max_payload": 1048576}\r\n')
                await client.receive()
                await client.send(b"-ERR 'Authentication Timeout'\r\n")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, refuse_two)
        port = listener.extra(SocketAttribute.local_port)
        async with Connection.connect(f"nats://127.0.0.1:{port}", timeout=60) as connection:
            assert (connection.connected, tries) == (True, 3)
        group.cancel_scope.cancel()


async def test_the_time_until_there_is_a_connection_counts_among_that_of_a_request(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, left = connection._link, list[float]()

    async def wait_connected() -> None:
        await anyio.sleep(0.2)
        connection._link = link

    def open_request(_: str, timeout: float) -> None:
        left.append(timeout)
        raise NotConnectedError("gone again")

    monkeypatch.setattr(connection, "wait_connected", wait_connected)
    monkeypatch.setattr(connection._replies, "open_request", open_request)
    connection._link = None
    with pytest.raises(NotConnectedError):
        await connection.request("x", timeout=60)
    assert left[0] < 59.9


async def test_publish_all_that_fails_waits_for_no_ack_any_more(js: JetStream, name: str) -> None:
    await js.ensure_stream(config(name, max_msg_size=10))
    waiting = len(js.connection._replies._waiting)
    with pytest.raises(ApiError):
        await js.publish_all(f"{name}.a", [b"fits", b"too large for it", b"too large for it, too"])
    assert len(js.connection._replies._waiting) == waiting


async def test_a_publish_that_nobody_answers_yet_is_repeated(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of a cluster may not know of a new stream yet."""
    await js.ensure_stream(config(name))
    monkeypatch.setattr(context, "NO_RESPONDERS_PAUSE", 0.0)
    request, refused = js.connection.request, [1, 2]

    async def refuse(*given: Any, **more: Any) -> Any:
        if refused:
            refused.pop()
            raise NoRespondersError("nobody answers")
        return await request(*given, **more)

    monkeypatch.setattr(js.connection, "request", refuse)
    assert (await js.publish(f"{name}.a", b"x")).sequence == 1


async def test_a_message_is_given_back_for_less_than_a_second_too(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []

    async def publish(_: str, body: bytes, *__: object, **___: object) -> None:
        sent.append(body)

    monkeypatch.setattr(js.connection, "publish", publish)
    for delay in (0.0, 0.5, 2.0):
        await js.nak(Message("s", "$JS.ACK.S.C.1.1.1.1700000000000000000.0", b"", None), delay)
    assert sent == [b"-NAK", b'-NAK {"delay":500000000}', b'-NAK {"delay":2000000000}']


async def test_what_the_server_leaves_out_is_no_difference(
    js: JetStream, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a server without permission to update streams could not start."""
    wanted = config(name, description="", deny_delete=False, max_age=0)
    await js.ensure_stream({**wanted, "max_msgs": 5})
    call, called = js.call, list[str]()

    async def note(subject: str, *given: Any) -> Any:
        called.append(subject.rpartition(".")[0])
        return await call(subject, *given)

    monkeypatch.setattr(js, "call", note)
    await js.ensure_stream(wanted)
    assert called == ["STREAM.CREATE", "STREAM.INFO"]
