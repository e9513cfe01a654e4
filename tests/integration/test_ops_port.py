"""The ops port of a server in this process: the probes show each fault as the table in operating.md says."""

import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest

from rebaser.ops import web
from rebaser.ops.port import ops_port
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser.snapshot import Census, Snapshot
from rebaser_client.jetstream import JetStream
from rebaser_core.errors import ConfigError, TransientError
from rebaser_core.streams.subjects import Subjects
from tests.support.contexts import context_of
from tests.support.http import ask, until
from tests.support.owners import Engine

pytestmark = pytest.mark.anyio

WELL = Snapshot("test", "serving", ack_wait=6.0, ping_interval=5.0, spark="ready")


@dataclass
class StateOf:
    """A state that never changes."""

    kept: Snapshot

    def snapshot(self) -> Snapshot:
        return self.kept

    def census(self) -> Census:
        return Census()


@pytest.fixture
async def port(anyio_backend: str) -> AsyncIterator[int]:
    async with ops_port(":0", StateOf(WELL)) as port:
        yield port


class Running:
    """A server with its ops port. `ahead` is how far (in seconds) its clock is ahead."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.ahead = 0.0
        self.engine = Engine()
        context = context_of(js, subjects, Settings(server_id="test", ack_wait=1.0), self.engine)
        self.context = replace(context, now=lambda: time.monotonic() + self.ahead)
        self.server = Server(self.context)
        self.scope = anyio.CancelScope()
        self.ready = anyio.Event()
        self.port = 0

    async def run(self) -> None:
        with self.scope:
            await self.server.run(self.ready.set)


@pytest.fixture
async def running(js: JetStream, subjects: Subjects, topology: object) -> AsyncIterator[Running]:
    running = Running(js, subjects)
    async with ops_port(":0", running.server) as running.port, anyio.create_task_group() as group:
        assert (await ask(running.port, "/readyz")).body == "stage: starting\n"
        group.start_soon(running.run)
        with anyio.fail_after(60):
            await running.ready.wait()
        yield running
        running.scope.cancel()


async def both(running: Running) -> tuple[int, int]:
    return (await ask(running.port, "/livez")).status, (await ask(running.port, "/readyz")).status


async def test_a_server_that_pulls_tasks_is_ready_whatever_spark_does(running: Running) -> None:
    for state in ("ready", "starting", "down: no Java"):
        running.engine.state = state
        assert await both(running) == (200, 200)
        assert (await ask(running.port, "/readyz?verbose")).json()["checks"]["spark"] == {"ok": True, "text": state}
        assert (await ask(running.port, "/readyz?require=spark")).status == (200 if state == "ready" else 503)


async def test_trouble_is_told_and_is_no_reason_to_stop_a_rollout(running: Running) -> None:
    running.context.health.record(running.context.now(), TransientError("the log is full"))
    assert await both(running) == (200, 200)
    told = (await ask(running.port, "/readyz?verbose")).json()["checks"]["trouble"]
    assert told == {"ok": True, "text": "the log is full"}


async def test_a_server_that_cannot_keep_its_tasks_is_dead(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by 31 s. With a healthy loop, the next round catches up; with a stuck loop, no round comes."""
    running.ahead += 31.0
    await until(running.port, "/livez", 200)
    stuck = anyio.Event()

    async def never(*_: object) -> None:
        stuck.set()
        await anyio.sleep_forever()

    monkeypatch.setattr("rebaser.server.keep_tasks_alive", never)
    with anyio.fail_after(60):
        await stuck.wait()
    assert await both(running) == (200, 200)
    running.ahead += 31.0
    assert await both(running) == (503, 503)
    told = re.search(r"no progress ack was attempted for (\d+) s", (await ask(running.port, "/livez")).body)
    assert told is not None
    assert int(told[1]) >= 31


async def test_a_server_that_drains_is_not_ready_from_the_signal_on(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sweeper takes time to end, and only then are the tasks given back. The port stays open meanwhile."""
    begun, go_on = anyio.Event(), anyio.Event()

    async def slow(_: object, group: Any) -> None:
        with anyio.CancelScope(shield=True):
            begun.set()
            await go_on.wait()
        group.cancel_scope.cancel()

    monkeypatch.setattr(Server, "_shut_down", slow)
    running.scope.cancel()
    await until(running.port, "/readyz", 503)
    assert (await ask(running.port, "/readyz")).body == "stage: draining\n"
    assert (await ask(running.port, "/livez")).status == 200
    with anyio.fail_after(60):
        await begun.wait()
    assert await both(running) == (200, 503)
    go_on.set()


async def test_a_blocked_loop_gives_no_answer(port: int) -> None:
    def probe() -> bool:
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            client.settimeout(0.5)
            client.send(b"GET /livez HTTP/1.1\r\nhost: probe\r\n\r\n")
            asked.set()
            try:
                return bool(client.recv(1))
            except TimeoutError:
                return False

    asked, answered = threading.Event(), []
    thread = threading.Thread(target=lambda: answered.append(probe()))
    thread.start()
    asked.wait()  # blocks the loop
    thread.join()
    assert answered == [False]
    assert (await ask(port, "/livez")).status == 200


async def test_an_autoscaler_learns_how_many_change_sets_have_work(
    js: JetStream, subjects: Subjects, topology: object
) -> None:
    """Also from a server that has just started: otherwise the fleet would shrink with each restart."""
    for name in ("a", "b", "c"):
        await js.publish(f"{subjects.root}.tasks.ws.{name}.process", b"")
    running = Running(js, subjects)
    async with ops_port(":0", running.server) as running.port, anyio.create_task_group() as group:
        early = await ask(running.port, "/scale")
        assert (early.status, early.body) == (503, "stage: starting\n")
        await running.context.stream_watch.ensure()
        group.start_soon(running.run)
        answer = await until(running.port, "/scale", 200)
        assert answer.json() == {"changeSets": 3}
        running.scope.cancel()


@pytest.mark.parametrize("fault", [{"nats_away": 11.0}, {"missing": "REBASER_TASKS"}, {"stage": "draining"}])
async def test_an_autoscaler_gets_no_number_from_a_server_that_has_none(fault: dict[str, Any]) -> None:
    async with ops_port(":0", StateOf(replace(WELL, **fault, tasks_waiting=5))) as port:
        assert (await ask(port, "/scale")).status == 503


async def test_only_get_and_head_are_answered(port: int) -> None:
    for method, status in (("GET", 200), ("HEAD", 200), ("POST", 405), ("PUT", 405), ("DELETE", 405)):
        assert (await ask(port, "/livez", method=method)).status == status
    assert (await ask(port, "/livez", method="HEAD")).body == ""
    assert (await ask(port, "/")).status == 404


async def test_an_unknown_check_is_refused_with_those_that_exist(port: int) -> None:
    answer = await ask(port, "/readyz?exclude=spark,nothing")
    assert (answer.status, answer.body) == (
        400,
        "unknown name in exclude=; use stage, nats, progress, streams, spark, trouble\n",
    )
    assert (await ask(port, "/readyz?require=nats")).status == 400
    assert (await ask(port, "/readyz?exclude=stage,nats&exclude=spark")).status == 200


async def test_a_request_that_is_too_large_is_cut_off(port: int) -> None:
    assert (await ask(port, "/livez", head=f"x: {'x' * (web.MAX_REQUEST - 100)}\r\n")).status == 200
    for head in (f"x: {'x' * web.MAX_REQUEST}\r\n", "x: x\r\n" * web.MAX_REQUEST):
        with pytest.raises((IndexError, anyio.BrokenResourceError)):  # no status line
            await ask(port, "/livez", head=head)
    assert (await ask(port, "/livez")).status == 200


async def test_connections_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(web, "LIFETIME", 600.0)
    async with ops_port(":0", StateOf(WELL)) as port:
        idle = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(3)]
        one_more = await anyio.connect_tcp("127.0.0.1", port)
        with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await one_more.receive()
        for stream in (*idle, one_more):
            await stream.aclose()
        await until(port, "/livez", 200)  # there is room for connections again
        monkeypatch.setattr(web, "LIFETIME", 0.05)
        async with await anyio.connect_tcp("127.0.0.1", port) as slow:
            await slow.send(b"GET /livez HTTP/1.1\r\n")
            with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await slow.receive()


async def test_an_answer_that_fails_says_no_more_than_that(events: Any) -> None:
    class Broken(StateOf):
        def snapshot(self) -> Snapshot:
            raise ValueError("a secret")

    async with ops_port(":0", Broken(WELL)) as port:
        answer = await ask(port, "/livez")
    assert (answer.status, answer.body) == (500, "the server failed to answer; its log says why\n")
    assert [event["path"] for event in events.named("http_failed")] == ["/livez"]


async def test_an_address_in_use_is_an_error_with_advice(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} cannot be used: it is in use; choose another with"):
        async with ops_port(f"127.0.0.1:{port}", StateOf(WELL)):
            pass


async def test_there_is_no_port_without_an_address() -> None:
    async with ops_port(None, StateOf(WELL)) as port:
        assert port == 0
