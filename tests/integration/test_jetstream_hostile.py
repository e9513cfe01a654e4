"""Messages that are made to break their reader are read, and so are the next ones."""

from collections.abc import AsyncIterator

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.jetstream import Connection, JetStream, OrderedConsumer, PullConsumer
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.nats_proxy import proxied

pytestmark = pytest.mark.anyio

SUBJECTS = [b"\xff\xfe", b"a\x0bb", b"a\x0cb", b"a\x00b", b"a\x0b1\x0b1\x0b", b"\x1b[2J", b"x" * 4000]
HEADERS = [
    b"NATS/1.0",
    b"NATS/1.0\r\n",
    b"\x00\xff garbage",
    b"NATS/1.0 200 \xff\xfe\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 77\r\n\r\n",
    b"NATS/1.0\r\nStatus: 409\r\n\r\n",
    b"NATS/1.0\r\nStatus: 100\r\nDescription: FlowControl Request\r\n\r\n",
    b"NATS/1.0\r\nNats-Consumer-Stalled: $JS.API.STREAM.PURGE.x\r\n\r\n",
    b"NATS/1.0\r\n\xff\xfe: \xff\r\nno colon\r\n: no name\r\n\r\n",
    b"NATS/1.0\r\nX: " + b"y" * 60_000 + b"\r\n\r\n",
]


@pytest.fixture
async def stream(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    name = subjects.prefix
    await js.ensure_stream({"name": name, "subjects": [f"{name}.*"], "storage": "memory"})
    await js.ensure_consumer(name, {"name": "c", "durable_name": "c", "ack_policy": "explicit"})
    yield name
    await js.call(f"STREAM.DELETE.{name}")


async def publish_raw(port: int, subject: bytes, headers: bytes | None) -> None:
    """Publish bytes that no client library would send."""
    async with await anyio.connect_tcp("127.0.0.1", port) as nats:
        await nats.receive()
        await nats.send(b'CONNECT {"headers":true,"verbose":false}\r\n')
        if headers is None:
            await nats.send(b"PUB %b 0\r\n\r\n" % subject)
        else:
            await nats.send(b"HPUB %b %d %d\r\n%b\r\n" % (subject, len(headers), len(headers), headers))
        await nats.send(b"PING\r\n")
        assert await nats.receive() == b"PONG\r\n"


@pytest.mark.parametrize("subject", SUBJECTS)
async def test_a_subject_of_any_bytes(
    js: JetStream, nats_server: EmbeddedNats, stream: str, subject: bytes, events: Events
) -> None:
    await publish_raw(nats_server.port, stream.encode() + b"." + subject, None)
    await read_both_ways(js, stream, events)


@pytest.mark.parametrize("headers", HEADERS)
async def test_headers_of_any_bytes(
    js: JetStream, nats_server: EmbeddedNats, stream: str, headers: bytes, events: Events
) -> None:
    await publish_raw(nats_server.port, stream.encode() + b".a", headers)
    await read_both_ways(js, stream, events)


async def read_both_ways(js: JetStream, stream: str, events: Events) -> None:
    """Read the hostile message, which comes first, and the valid one after it."""
    await js.publish(f"{stream}.good", b"good")
    async with OrderedConsumer(js, stream, f"{stream}.*") as consumer:
        messages = [await anext(consumer), await anext(consumer)]
    assert [message.stream_sequence for message in messages] == [1, 2]
    assert [message.data for message in messages] == [b"", b"good"]
    async with PullConsumer(js, stream, "c") as pull:
        pull.add_credit(2)
        for wanted in (b"", b"good"):
            message = await anext(pull)
            assert message.data == wanted
            await js.ack_sync(message)
        assert pull.outstanding == 0
    stored = await js.get(stream, 1)
    assert stored is not None
    assert stored.data == b""
    await js.subject_counts(stream, ">")
    assert not events.named("ordered_reset")
    assert not events.named("nats_disconnected")


async def test_a_server_that_speaks_nonsense_is_left_and_found_again(own_nats: EmbeddedNats) -> None:
    async with proxied(own_nats.port) as proxy, Connection.connect(proxy.url, ping_interval=1.0) as connection:
        for nonsense in (b"HELLO\r\n", b"INFO {nonsense\r\n", b"MSG a b c\r\n", b"\xff" * 10 + b"\r\n"):
            reconnected = anyio.Event()
            forget = connection.on_reconnect(reconnected.set)
            await proxy.say(nonsense)
            await reconnected.wait()
            forget()
            assert (await JetStream(connection).account_info()).streams == 0
