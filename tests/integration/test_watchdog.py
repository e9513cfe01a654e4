"""Connections, JetStream, consumers and event loops that seem alive and are dead: each is noticed and replaced."""

import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.lowlevel
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser.runtime.watchdog import watched_loop
from rebaser_client.jetstream import (
    Connection,
    JetStream,
    Msg,
    NoAnswerError,
    NoRespondersError,
    OrderedConsumer,
    PullConsumer,
)
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER, TASKS_GROUP, TopologyOptions
from tests.conftest import Events
from tests.support.nats_proxy import proxied

pytestmark = pytest.mark.anyio

LIMIT = 120.0  # seconds until a test counts as hanging; no measure of speed


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
        await anyio.sleep(0.01)


class Deaf:
    """A proxy that can discard the bytes of existing connections: `up` to the server, `down` from the server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.swallowed: dict[str, set[int]] = {"up": set(), "down": set()}
        self.connections = 0

    def swallow(self, way: str) -> None:
        self.swallowed[way] = set(range(self.connections))

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


@asynccontextmanager
async def swallowing(target: int) -> AsyncIterator[Deaf]:
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        proxy = Deaf(listener.extra(anyio.abc.SocketAttribute.local_port))

        async def pump(number: int, source: anyio.abc.SocketStream, to: anyio.abc.SocketStream, way: str) -> None:
            try:
                async for data in source:
                    if number not in proxy.swallowed[way]:
                        await to.send(data)
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            await anyio.aclose_forcefully(to)

        async def serve(client: anyio.abc.SocketStream) -> None:
            server = await anyio.connect_tcp("127.0.0.1", target)
            number, proxy.connections = proxy.connections, proxy.connections + 1
            async with client, server, anyio.create_task_group() as pair:
                pair.start_soon(pump, number, client, server, "up")
                pair.start_soon(pump, number, server, client, "down")

        group.start_soon(listener.serve, serve)
        try:
            yield proxy
        finally:
            group.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_connection_that_is_up_but_dead_is_replaced(
    nats_server: EmbeddedNats, events: Events, way: str
) -> None:
    """Either nothing arrives, or everything that is sent is lost, while the sockets stay open."""
    reconnected = anyio.Event()
    with anyio.fail_after(LIMIT):
        async with (
            swallowing(nats_server.port) as proxy,
            Connection.connect(nats_server.url) as other,
            Connection.connect(proxy.url, ping_interval=1.0) as connection,
            connection.subscribe(subject := connection.new_inbox()) as messages,
        ):
            connection.on_reconnect(reconnected.set)
            with pytest.raises(NoRespondersError):  # once this is answered, the server knows the subscription
                await connection.request(connection.new_inbox())
            proxy.swallow(way)
            while not events.named("nats_disconnected"):
                await other.publish(subject, b"chatter")  # so that bytes keep coming with `up`
                await anyio.sleep(0.01)
            await reconnected.wait()
            await connection.publish(subject, b"again")
            async for message in messages:
                if message.data == b"again":
                    break
    reason = events.named("nats_disconnected")[0]["reason"]
    assert reason == ("the server sent nothing" if way == "down" else "the server stopped answering pings")


async def test_a_quiet_connection_is_left_alone(nats_server: EmbeddedNats, events: Events) -> None:
    async with Connection.connect(nats_server.url, ping_interval=2.0) as connection:
        link = connection._link
        assert link is not None
        with anyio.fail_after(LIMIT):
            await until(lambda: link._parser.pongs >= 3)  # more beats than a dead connection would survive
    assert not events.named("nats_disconnected")


async def test_what_a_frozen_server_had_no_room_for_is_never_sent(own_nats: EmbeddedNats, events: Events) -> None:
    """The server's socket is full, so bytes wait on the client's side. They are discarded with the link, whoever reads
    the socket later.

    The server may still read bytes that left before, and answer them through the next link.
    """
    chunk = bytes(1024 * 1024)
    ends: list[int] = []  # the number of bytes sent up to the end of each message
    with anyio.fail_after(LIMIT):
        async with Connection.connect(own_nats.url, ping_interval=1.0) as connection, connection.subscribe("x") as seen:
            link = connection._link
            assert link is not None
            transport = link.client._transport._io_writer.transport  # type: ignore[union-attr]
            os.kill(own_nats.pid, signal.SIGSTOP)
            handed = left = 0
            try:
                while connection.connected:
                    with suppress(NotConnectedError):
                        await connection.publish("filler", chunk)
                        await connection.publish("x", b"%d" % len(ends))
                        handed += len(chunk)
                        ends.append(handed)
                    await anyio.lowlevel.checkpoint()
                    if waiting := link.client.unsent_bytes:
                        left = handed - waiting
            finally:
                os.kill(own_nats.pid, signal.SIGCONT)
            await connection.wait_connected()
            await connection.publish("x", b"fresh")
            came = [message.data async for message in _until(seen, b"fresh")]
    kept = [b"%d" % number for number, end in enumerate(ends) if end > left + len(chunk)]
    assert kept
    assert not set(came) & set(kept)
    assert transport.get_write_buffer_size() == 0


async def _until(messages: AsyncIterator[Msg], last: bytes) -> AsyncIterator[Msg]:
    async for message in messages:
        if message.data == last:
            return
        yield message


async def test_of_several_servers_one_that_says_nothing_keeps_nobody_from_the_others(
    nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "sample", lambda servers, _: servers)  # the bad server first
    # Accepts connections, and does nothing else.
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with Connection.connect(f"127.0.0.1:{port},{nats_server.url}", timeout=10) as connection:
            assert connection.connected


async def test_jetstream_that_answers_nothing_is_reported_and_consumers_begin_anew(
    nats_server: EmbeddedNats, events: Events, subjects: Subjects, topology: TopologyOptions
) -> None:
    """No message arrives, not even JetStream's answers and heartbeats, while pings are answered."""
    key = ChangeSetKey("ws", "cs")
    with anyio.fail_after(LIMIT):
        async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
            js, impatient = JetStream(connection), JetStream(connection, timeout=0.2)
            ordered = OrderedConsumer(js, subjects.requests_stream, subjects.requests(key), start=1, idle_heartbeat=0.5)
            pull = PullConsumer(
                js, subjects.tasks_stream, TASKS_CONSUMER, group=TASKS_GROUP, expires=5, idle_heartbeat=0.5
            )
            async with ordered, pull, Connection.connect(nats_server.url) as around:
                pull.add_credit(1)
                before = ordered._generation
                proxy.lose = lambda _: True
                while not (events.named("jetstream_silent") and events.named("pull_heartbeats_missed")):
                    with pytest.raises(NoAnswerError):
                        await impatient.account_info()
                await until(lambda: ordered._generation is not before)
                assert not events.named("nats_disconnected")
                for subject in (subjects.requests(key), subjects.task(key)):
                    await JetStream(around).publish(subject, b"")
                proxy.lose = lambda _: False
                assert (await anext(ordered)).subject == subjects.requests(key)
                task = await anext(pull)
                await js.ack_sync(task)
    assert events.named("jetstream_silent")[0]["calls"] >= 3
    assert events.named("jetstream_answers")


def block_the_loop(events: Events, until: str) -> None:
    """Block the loop, as a defect would, until the watchdog's thread has logged the event `until`."""
    stop = time.monotonic() + LIMIT
    while not events.named(until) and time.monotonic() < stop:
        time.sleep(0.01)


def compute_in_the_loop(events: Events, until: str) -> None:
    """Block the loop by computing, so that the interpreter's lock is held most of the time."""
    stop = time.monotonic() + LIMIT
    while not events.named(until) and time.monotonic() < stop:
        sum(range(1_000_000))


def watchdogs() -> set[threading.Thread]:
    """Return the threads that watch loops, which are also those of servers that fixtures keep for other tests."""
    return {thread for thread in threading.enumerate() if thread.name == "loop-watchdog"}


@pytest.mark.parametrize("block", [block_the_loop, compute_in_the_loop])
async def test_a_blocked_loop_is_reported_with_its_stack(events: Events, block: object) -> None:
    assert callable(block)
    before = watchdogs()
    with watched_loop(2.0):  # longer than a busy machine keeps a process from running
        await anyio.sleep(0.05)
        block(events, "loop_blocked")
        with anyio.fail_after(LIMIT):
            await until(lambda: bool(events.named("loop_resumed")))
        block_briefly = time.monotonic() + 2.5
        while time.monotonic() < block_briefly:
            pass  # a second block is reported at most every half minute
    (report,) = events.named("loop_blocked")
    assert report["seconds"] >= 2.0
    assert block.__name__ in report["stack"]  # type: ignore[attr-defined]
    assert "test_a_blocked_loop" in report["stack"]
    assert watchdogs() == before


async def test_a_loop_that_runs_is_not_reported_and_the_thread_ends_with_an_error_too(events: Events) -> None:
    async def fail() -> None:
        with watched_loop(5):
            await anyio.sleep(0.1)
            raise ZeroDivisionError

    before = watchdogs()
    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not events.named("loop_blocked")
    assert watchdogs() == before
