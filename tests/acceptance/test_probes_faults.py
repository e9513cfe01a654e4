"""What the probes of a server process answer during faults: a full log, a network that swallows everything, a name
that is not resolved, Spark that is killed, and a shutdown during an append."""

import os
import re
import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser.runtime import context
from rebaser.serving import serve
from rebaser.settings import load_settings
from rebaser.testing.in_process import InProcessEngine
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from tests.support.commands import rebaser
from tests.support.fleet import START_LIMIT, ServerProcess, launched
from tests.support.http import ask, until
from tests.support.nats_proxy import Frame, proxied

pytestmark = pytest.mark.anyio

SPARKLESS: dict[str, Any] = {"module": "tests.support.sparkless_server", "http": ":0"}
NAME = "nats.invalid"  # no resolver knows it
FOREVER = 3600.0  # seconds
AWAY = re.compile(r"no connection for ([\d.]+) s")


async def port_of(server: ServerProcess) -> int:
    port = (await server.wait_for("http_listening"))["port"]
    await server.wait_for("server_ready")
    return int(port)


async def checks(port: int) -> tuple[int, dict[str, Any]]:
    answer = await ask(port, "/readyz?verbose")
    return answer.status, answer.json()["checks"]


async def test_a_full_log_is_told_and_the_server_stays_ready(own_nats: EmbeddedNats) -> None:
    async with (
        launched(own_nats.url, "one", **SPARKLESS) as server,
        RebaserClient.connect(own_nats.url) as client,
        Connection.connect(own_nats.url) as connection,
    ):
        port = await port_of(server)
        js = JetStream(connection)
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        info = await js.stream_info("REBASER_COMMITS")
        await js.call(f"STREAM.UPDATE.{info.name}", {**info.config, "max_bytes": info.bytes + 100})
        await client.enqueue_updates("ws", "cs", [Set("a", "x" * 1000)])
        with anyio.fail_after(120):
            while True:
                status, told = await checks(port)
                assert status == 200
                if told["trouble"]["text"] != "none":
                    break
                await anyio.sleep(0.05)
        assert "maximum bytes exceeded" in told["trouble"]["text"]
        assert told["trouble"]["ok"]
        assert (await ask(port, "/livez")).status == 200


async def test_without_nats_a_server_is_ready_for_two_ping_intervals_and_no_longer(own_nats: EmbeddedNats) -> None:
    """The network swallows everything, and no connection is closed."""
    interval = 1.0
    async with proxied(own_nats.port) as proxy, launched(proxy.url, "one", ping_interval=interval, **SPARKLESS) as one:
        port = await port_of(one)
        proxy.delay = lambda _: FOREVER
        away: dict[int, list[float]] = {200: [], 503: []}
        with anyio.fail_after(120):
            while len(away[503]) < 3:
                status, told = await checks(port)
                found = AWAY.match(told["nats"]["text"])
                away[status].append(float(found[1]) if found else 0.0)
                assert (await ask(port, "/livez")).status == 200
                await anyio.sleep(0.02)
        assert max(away[200], default=0.0) <= 2 * interval <= min(away[503])
        proxy.delay = lambda _: 0.0
        await proxy.cut()
        await until(port, "/readyz", 200)


async def test_a_server_that_drains_is_not_ready_although_an_append_is_in_flight(own_nats: EmbeddedNats) -> None:
    """The answer of NATS to the append is lost, so the server cannot finish. Once an answer arrives, it does."""
    lost = anyio.Event()

    def lose(frame: Frame) -> bool:
        ours = b'"stream":"REBASER_COMMITS"' in frame.payload and b'"seq"' in frame.payload
        if ours:
            lost.set()
        return ours

    async with (
        proxied(own_nats.port) as proxy,
        launched(proxy.url, "one", shutdown_grace=600, **SPARKLESS) as server,
        RebaserClient.connect(own_nats.url) as client,
        anyio.create_task_group() as group,
    ):
        port = await port_of(server)
        proxy.lose = lose
        group.start_soon(client.enqueue_updates_with_reply, "ws", "cs", [Set("a", 1)])
        with anyio.fail_after(120):
            await lost.wait()
        os.kill(server.process.pid, signal.SIGTERM)
        draining = await until(port, "/readyz", 503)
        assert draining.body == "stage: draining\n"
        assert (await ask(port, "/livez")).status == 200
        proxy.lose = lambda _: False
        with anyio.fail_after(START_LIMIT):
            assert await server.process.wait() == 0


@pytest.mark.long  # Spark starts twice
@pytest.mark.spark
async def test_killed_spark_is_told_and_comes_back(own_nats: EmbeddedNats) -> None:
    """A server notices it although it has nothing to compute."""
    async with launched(own_nats.url, "one", http=":0") as server:
        port = await port_of(server)
        await server.wait_for("dvu_ready")
        assert (await until(port, "/readyz?require=spark", 200)).body == "ok\n"
        [jvm] = children(server.process.pid, b"java")
        os.kill(jvm, signal.SIGKILL)
        down = await until(port, "/readyz?require=spark", 503)
        assert down.body.startswith("spark: ")
        status, told = await checks(port)
        assert (status, told["spark"]["ok"]) == (200, True)
        assert (await ask(port, "/livez")).status == 200
        await until(port, "/readyz?require=spark", 200)


def children(pid: int, name: bytes) -> list[int]:
    """Return the processes below `pid` whose first argument ends with `name`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            command = folder.joinpath("cmdline").read_bytes().split(b"\0")[0]
        except OSError:
            continue
        if parent == pid:
            found += [int(folder.name)] if command.endswith(name) else children(int(folder.name), name)
    return found


async def test_dns_that_fails_under_a_running_server_is_told(
    own_nats: EmbeddedNats, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the name of NATS; its connection is cut while nobody can resolve this name."""
    resolve, fails = socket.getaddrinfo, False

    def resolver(host: Any, *arguments: Any, **named: Any) -> Any:
        if host != NAME:
            return resolve(host, *arguments, **named)
        if fails:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1", *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    monkeypatch.setattr(context, "_spark", lambda *_: InProcessEngine())
    ready = anyio.Event()
    async with proxied(own_nats.port) as proxy, anyio.create_task_group() as group:
        url = f"nats://{NAME}:{proxy.port}"
        settings = load_settings(nats_url=url, ping_interval=0.5, server_id="one", http=f":{unused_port}")
        group.start_soon(partial(serve, settings, ready=ready.set))
        with anyio.fail_after(120):
            await ready.wait()
        async with RebaserClient.connect(own_nats.url) as client:
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
            fails = True
            await proxy.cut()
            await until(unused_port, "/readyz", 503, "no connection for ")
            await until(unused_port, "/readyz", 503, "name resolution")
            assert (await ask(unused_port, "/livez")).status == 200
            await client.enqueue_updates("ws", "cs", [Set("a", 2)])
            [first, *_] = (await client.explain("ws", "cs")).reasons
            assert (first.code, "/readyz" in first.advice) == ("no_server", True)
        done = await rebaser("explain", "ws", "cs", nats_url=f"nats://{NAME}:{proxy.port}")
        assert (done.returncode, "ame or service not known" in done.stderr) == (1, True), done.stderr
        fails = False
        await until(unused_port, "/readyz", 200)
        group.cancel_scope.cancel()
