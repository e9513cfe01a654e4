"""A cluster of three real nats-servers with JetStream on loopback.

Invariants: nothing is bound to an event loop, so one cluster serves tests that have a loop each; the nodes end with the
test process, even if it is killed (on Linux); a test gets the cluster only when all nodes are up to date.
"""

import http.client
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from rebaser.embedded.nats import DIE_WITH_PARENT, find_binary
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.errors import RebaserError
from tests.support.ports import free_ports

NODES = ("n1", "n2", "n3")
BOUND = 60.0  # seconds; a bound against hanging. An election after a crash takes 4 to 9 s
POLL = 0.05  # seconds
TRIES = 10


class PortTakenError(Exception):
    """Another process listens on a port that was chosen for a node."""


class Node:
    """One nats-server. It keeps its ports and its data when it is restarted."""

    def __init__(self, name: str, folder: Path, ports: tuple[int, int, int]) -> None:
        self.name = name
        self.folder = folder
        self.port, self.route_port, self.monitor_port = ports
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def route(self) -> str:
        return f"nats://127.0.0.1:{self.route_port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def answers(self) -> bool:
        return self.running and not self.paused

    def launch(self, config: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "nats-server.conf"
        file.write_text(json.dumps(config, indent=2))
        command = [str(find_binary()), "--config", str(file)]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command]
        with (self.folder / "nats-server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def pause(self, paused: bool) -> None:
        self.send(signal.SIGSTOP if paused else signal.SIGCONT)
        self.paused = paused

    def end(self, number: signal.Signals) -> None:
        """Send the signal, and return when the process has ended."""
        if self.process is not None:
            self.pause(False)  # A paused process would react only to SIGKILL.
            self.send(number)
            try:
                self.process.wait(BOUND)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def healthy(self) -> bool:
        """Return whether the node knows a meta leader, and is up to date with everything of which it has a replica."""
        with suppress(OSError, http.client.HTTPException):
            return self._get("/healthz")[0] == 200
        return False

    def meta(self) -> dict[str, Any]:
        """Return what the node reports of the meta group (`leader`, `replicas`); empty if it does not answer."""
        with suppress(OSError, http.client.HTTPException, ValueError):
            status, body = self._get("/jsz")
            if status == 200:
                return dict(json.loads(body).get("meta_cluster") or {})
        return {}

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.monitor_port, timeout=2.0)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


class Cluster:
    """Three nodes with the names in `NODES`, made by `cluster_in`. Each call waits until NATS reports its effect."""

    def __init__(self, folder: Path) -> None:
        self.name = f"c{secrets.token_hex(4)}"
        ports = iter(free_ports(3 * len(NODES)))
        self.nodes = {name: Node(name, folder / name, (next(ports), next(ports), next(ports))) for name in NODES}

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes.values()]

    @property
    def url(self) -> str:
        """Return the URLs of all nodes, as `Connection.connect` takes them."""
        return ",".join(self.urls)

    # -- nodes -----------------------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """End a node with SIGKILL, as a crash does."""
        await anyio.to_thread.run_sync(self.nodes[name].end, signal.SIGKILL)

    async def stop(self, name: str) -> None:
        """End a node with SIGTERM: it hands its leaderships over."""
        await anyio.to_thread.run_sync(self.nodes[name].end, signal.SIGTERM)

    def pause(self, name: str) -> None:
        """Stop a node with SIGSTOP, so that its connections stay open and nothing is answered, or let it continue."""
        self.nodes[name].pause(True)

    def resume(self, name: str) -> None:
        self.nodes[name].pause(False)

    async def start(self, name: str) -> None:
        """Start a node that was ended, and return when it has caught up."""
        self._launch(self.nodes[name])
        await self.wait_ready()

    async def restore(self) -> None:
        """Start and continue all nodes, and return when they have caught up."""
        for node in self.nodes.values():
            node.pause(False)
            if not node.running:
                self._launch(node)
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Return when all nodes that answer agree on a meta leader and have caught up.

        Raises `PortTakenError` if a node that was not stopped has ended.
        """
        await _until(self._ready, "the cluster is ready")

    def end(self) -> None:
        for node in self.nodes.values():
            node.end(signal.SIGKILL)

    # -- leaders ---------------------------------------------------------------------------------------------------

    async def meta_leader(self) -> str:
        """Return the node that leads the cluster, when all nodes that answer agree on it."""

        async def ask() -> str:
            leaders = {meta.get("leader", "") for meta in (await self._metas()).values()}
            return self._if_it_answers(leaders.pop()) if len(leaders) == 1 else ""

        return str(await _until(ask, "a meta leader is known"))

    async def leader_of(self, stream: str, consumer: str | None = None) -> str:
        """Wait until the stream, or its consumer, has a leader, and return the name of that node."""
        async with self._jetstream() as js:

            async def ask() -> str:
                subject = f"STREAM.INFO.{stream}" if consumer is None else f"CONSUMER.INFO.{stream}.{consumer}"
                answer = await js.call(subject, timeout=1.0)
                return self._if_it_answers((answer.get("cluster") or {}).get("leader", ""))

            return str(await _until(ask, f"{consumer or stream} has a leader"))

    async def stepdown(self, stream: str) -> str:
        """Make another node the leader of the stream, and return its name."""
        old = await self.leader_of(stream)

        async def step() -> bool:
            if await self.leader_of(stream) == old:
                async with self._jetstream() as js:
                    await js.call(f"STREAM.LEADER.STEPDOWN.{stream}")
            return True

        await _until(step, f"the leader of {stream} steps down")

        async def ask() -> str:
            new = await self.leader_of(stream)
            return new if new != old else ""

        return str(await _until(ask, f"{stream} has another leader"))

    async def delete_streams(self) -> None:
        async def delete() -> bool:
            async with self._jetstream() as js:  # which fails as long as the nodes have not elected a leader
                while names := (await js.call("STREAM.NAMES")).get("streams"):
                    for name in names:
                        with suppress(RebaserError):
                            await js.call(f"STREAM.DELETE.{name}")
            return True

        await _until(delete, "no stream is left")

    # --------------------------------------------------------------------------------------------------------------

    def _if_it_answers(self, name: str) -> str:
        """Return the answer, or None. The other nodes name a leader that has ended until they have elected another."""
        return name if name in self.nodes and self.nodes[name].answers else ""

    def _launch(self, node: Node) -> None:
        node.launch(
            {
                "server_name": node.name,
                "listen": f"127.0.0.1:{node.port}",
                "http": f"127.0.0.1:{node.monitor_port}",
                "jetstream": {"store_dir": str(node.folder / "jetstream")},
                "cluster": {
                    "name": self.name,
                    # Otherwise clients would connect to a node directly, and bypass the proxy of a
                    # test.
                    "no_advertise": True,
                    "listen": f"127.0.0.1:{node.route_port}",
                    "routes": [other.route for other in self.nodes.values()],
                },
            }
        )

    async def _ready(self) -> bool:
        running = [node for node in self.nodes.values() if node.process is not None and not node.paused]
        for node in running:
            if not node.running:
                raise PortTakenError((node.folder / "nats-server.log").read_text()[-500:])
        metas = await self._metas()
        leaders = {meta.get("leader") for meta in metas.values()}
        if len(metas) != len(running) or len(leaders) != 1:
            return False
        # The leader does not count itself. It has to see the other nodes before it can place streams on them.
        followers = metas.get(str(leaders.pop()), {}).get("replicas") or ()
        if sum(bool(one.get("current")) and not one.get("offline") for one in followers) != len(running) - 1:
            return False
        return all([await anyio.to_thread.run_sync(node.healthy) for node in running])

    async def _metas(self) -> dict[str, dict[str, Any]]:
        return {node.name: await anyio.to_thread.run_sync(node.meta) for node in self.nodes.values() if node.answers}

    @asynccontextmanager
    async def _jetstream(self) -> AsyncIterator[JetStream]:
        alive = [node.url for node in self.nodes.values() if node.answers]
        async with Connection.connect(",".join(alive), name="cluster") as connection:
            yield JetStream(connection)


@asynccontextmanager
async def cluster_in(folder: Path) -> AsyncIterator[Cluster]:
    """Start a cluster that stores its data under `folder`, and yield it when it is ready. Any event loop may use it."""
    cluster = await _started(folder)
    try:
        yield cluster
    finally:
        cluster.end()


async def _started(folder: Path) -> Cluster:
    for attempt in itertools.count(1):
        cluster = Cluster(folder / str(attempt))
        try:
            await cluster.restore()
        except BaseException as error:
            cluster.end()
            if not isinstance(error, PortTakenError) or attempt == TRIES:
                raise
        else:
            return cluster
    raise AssertionError


async def _until(ask: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Call repeatedly until the answer is true, and return it. A call that fails for now is repeated."""
    try:
        with anyio.fail_after(BOUND):
            while True:
                with suppress(RebaserError):
                    if answer := await ask():
                        return answer
                await anyio.sleep(POLL)
    except TimeoutError:
        raise TimeoutError(f"not within {BOUND:g} s: {what}") from None
