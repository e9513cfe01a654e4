"""The installation under test: nats-server (one, or a cluster of three), servers, clients and Spark.

All of them are processes, connected by links that can be broken. A process that has ended is started again, as a
supervisor does.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.abc
from anyio import to_thread

from rebaser.embedded.nats import EmbeddedNats, embedded_nats
from rebaser.embedded.spark import Jvm
from rebaser_client import RebaserClient
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions, streams
from tests.chaos.network import Link, Network, network
from tests.support.cluster import Cluster, cluster_in
from tests.support.commands import ROOT, environment
from tests.support.fleet import NO_SPARK, ServerProcess, launched
from tests.support.ports import free_ports

ACK_WAIT = 2.0  # seconds
STORE = 160 * 1024 * 1024  # storage limit of the single nats-server in bytes
ENOUGH = 400.0  # seconds; a bound against hanging
TOLD = ("warning", "error", "critical")
RESTART = 0.2  # seconds until a process that has ended is started again
SUBJECTS = Subjects("")


class Nats(Protocol):
    """A single nats-server, or a cluster."""

    @property
    def ports(self) -> list[int]: ...


class One:
    """A single nats-server."""

    def __init__(self, server: EmbeddedNats) -> None:
        self.server = server

    @property
    def ports(self) -> list[int]:
        return [self.server.port]


class Three:
    """A cluster of three nats-servers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.cluster.nodes.values()]


class Spark:
    """A Spark Connect server that keeps its address when it is restarted."""

    def __init__(self, folder: Path) -> None:
        self.url = NO_SPARK
        self._folder = folder
        self._token = secrets.token_urlsafe(16)
        self._jvm: Jvm | None = None
        self._port = 1

    async def start(self, net: Network) -> None:
        await self._launch()
        link = await net.link(lambda: self._port)
        self.url = f"sc://localhost:{link.port}/;token={self._token}"

    async def restart(self) -> None:
        """Kill Spark with SIGKILL, whatever it is doing, and start another one."""
        await self.stop()
        await self._launch()

    async def stop(self) -> None:
        if self._jvm is not None:
            self._jvm.kill()
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._jvm.stop)

    async def _launch(self) -> None:
        self._jvm = Jvm("local[1]", memory="1g", scratch=self._folder, token=self._token)
        await to_thread.run_sync(self._jvm.start)
        self._port = urlsplit(self._jvm.url).port or 1


@dataclass
class Daemon:
    """A server of the fleet, which is restarted as a new process. `wanted` says whether it should run."""

    name: str
    links: list[Link]
    process: ServerProcess | None = None
    client: anyio.abc.Process | None = None
    killed: set[int] = field(default_factory=set)  # process ids that a fault has killed
    lives: int = 0

    @property
    def pid(self) -> int | None:
        running = self.process.process if self.process is not None else self.client
        return running.pid if running is not None and running.returncode is None else None

    async def running(self) -> int:
        """Return the process id once the server runs."""
        while True:
            pid = self.pid
            if pid is not None:
                return pid
            await anyio.sleep(RESTART / 2)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        pid = self.pid
        if pid is not None:
            if number in (signal.SIGKILL, signal.SIGTERM):
                self.killed.add(pid)
            os.kill(pid, number)

    @property
    def url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{link.port}" for link in self.links)


class System:
    """The whole installation; `installation` makes it."""

    def __init__(self, nats: Nats, spark: Spark, net: Network, folder: Path, group: anyio.abc.TaskGroup) -> None:
        self.nats = nats
        self.spark = spark
        self.folder = folder
        self.histories = folder  # the folder to which clients write their histories
        self.servers: list[Daemon] = []
        self.clients: list[Daemon] = []
        self.ended: list[str] = []  # processes that ended although no fault ended them
        self._processes: list[ServerProcess] = []
        self._net = net
        self._group = group
        self._clients_wanted = False

    @property
    def direct(self) -> str:
        """Return the URL of NATS without a link in between."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.nats.ports)

    @property
    def links(self) -> list[Link]:
        return [link for daemon in (*self.servers, *self.clients) for link in daemon.links]

    # -- servers ---------------------------------------------------------------------------------------------------

    async def start_servers(self, count: int, settings: dict[str, object]) -> None:
        """Start servers at the same time, and return when all are ready, and can compute derived values if there is
        Spark."""
        given: dict[str, object] = {
            "spark": self.spark.url,
            "ack_wait": ACK_WAIT,
            "quiescent_period": 1,
            "sweep_interval": 2,
            "checkpoint_bytes": 8192,  # small, so that a new owner loads a checkpoint and folds the log after it
            "replicas": min(len(self.nats.ports), 3),
            "scratch": self.folder / "spark",
        } | settings
        for number in range(count):
            daemon = Daemon(f"s{number}", await self._links())
            self.servers.append(daemon)
            self._group.start_soon(self._keep_server, daemon, given)
        for daemon in self.servers:
            await self.server_up(daemon)
            if given["spark"] != NO_SPARK:
                assert daemon.process is not None
                await daemon.process.wait_for("dvu_ready", limit=ENOUGH)

    async def server_up(self, daemon: Daemon) -> ServerProcess:
        """Return when the server accepts tasks."""
        with anyio.fail_after(ENOUGH):
            while True:
                server = daemon.process
                if server is not None and daemon.pid is not None and server.count("server_ready"):
                    return server
                await anyio.sleep(0.05)

    async def _keep_server(self, daemon: Daemon, settings: dict[str, Any]) -> None:
        while True:
            async with launched(daemon.url, daemon.name, **settings) as server:
                daemon.process = server
                self._processes.append(server)
                daemon.lives += 1
                code = await server.process.wait()
            if server.process.pid not in daemon.killed and server.count("server_ready"):
                self.ended.append(f"server {daemon.name} ended by itself, code {code}: {server.events[-3:]}")
            await anyio.sleep(RESTART)

    def told(self) -> Counter[str]:
        """Return how often servers have logged each warning and error so far, which shows the effects of faults."""
        events = (event for process in self._processes for event in process.events)
        return Counter(str(event["event"]) for event in events if event.get("level") in TOLD)

    # -- clients ---------------------------------------------------------------------------------------------------

    async def start_clients(self, count: int, plan: dict[str, Any], rng: random.Random) -> None:
        """Start clients on a workspace. After each start, a client writes a new history."""
        self._clients_wanted = True
        for daemon in self.clients:
            daemon.lives = 0
        while len(self.clients) < count:
            self.clients.append(Daemon(f"c{len(self.clients)}", await self._links()))
        for daemon in self.clients:
            self._group.start_soon(self._keep_client, daemon, plan, random.Random(rng.random()))

    async def stop_clients(self) -> list[str]:
        """Let the clients finish, and return complaints about those that did not."""
        self._clients_wanted = False
        complaints: list[str] = []
        async with anyio.create_task_group() as group:
            for daemon in self.clients:
                group.start_soon(self._stop_client, daemon, complaints)
        return complaints

    async def _stop_client(self, daemon: Daemon, complaints: list[str]) -> None:
        with anyio.move_on_after(ENOUGH):
            while daemon.client is not None:
                # Before the client has said that it runs, SIGTERM would end it as SIGKILL does.
                if daemon.pid not in (None, *daemon.killed) and self.history_of(daemon).stat().st_size:
                    daemon.signal(signal.SIGTERM)
                await anyio.sleep(0.05)
            return
        complaints.append(f"client {daemon.name} does not end")
        daemon.signal(signal.SIGKILL)

    def start_histories(self, name: str) -> None:
        """Let clients write to a folder of this name from now on."""
        self.histories = self.folder / name
        self.histories.mkdir()

    def history_of(self, daemon: Daemon) -> Path:
        path = self.histories / f"{daemon.name}-{daemon.lives}.jsonl"
        path.touch()
        return path

    async def _keep_client(self, daemon: Daemon, plan: dict[str, Any], rng: random.Random) -> None:
        while self._clients_wanted:
            daemon.lives += 1
            given = plan | {
                "url": daemon.url,
                "name": f"{daemon.name}-{daemon.lives}",
                "seed": rng.randrange(2**32),
                "history": str(self.history_of(daemon)),
            }
            with (self.folder / "clients.log").open("ab") as log:
                daemon.client = await anyio.open_process(
                    [sys.executable, "-m", "tests.chaos.client", json.dumps(given)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    env=environment(),
                )
            async with daemon.client as client:
                try:
                    code = await client.wait()
                except BaseException:
                    client.kill()
                    raise
            if client.pid not in daemon.killed or code not in (0, -signal.SIGKILL):
                self.ended.append(f"client {given['name']} ended by itself, code {code}: see clients.log")
            daemon.client = None
            await anyio.sleep(RESTART)

    # --------------------------------------------------------------------------------------------------------------

    async def _links(self) -> list[Link]:
        return [await self._net.link(partial(int, port)) for port in self.nats.ports]

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStream]:
        async with Connection.connect(self.direct, name="chaos") as connection:
            yield JetStream(connection)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RebaserClient]:
        async with RebaserClient.connect(self.direct) as client:
            yield client


@asynccontextmanager
async def installation(
    folder: Path, *, clustered: bool = False, spark: bool = True, **nats_options: Any
) -> AsyncIterator[System]:
    """Start NATS and Spark, and yield the system without servers and clients. `nats_options` are those of
    `embedded_nats`."""
    async with AsyncExitStack() as stack:
        nats: One | Three
        if clustered:
            nats = Three(await stack.enter_async_context(cluster_in(folder / "cluster")))
        else:
            given: dict[str, Any] = {"data_dir": folder / "nats", "jetstream": {"max_file_store": STORE}} | nats_options
            nats = One(await stack.enter_async_context(embedded_nats(port=free_ports(1)[0], **given)))
        net = await stack.enter_async_context(network())
        engine = Spark(folder / "spark")
        stack.push_async_callback(engine.stop)
        if spark:
            await engine.start(net)
        group = await stack.enter_async_context(anyio.create_task_group())
        system = System(nats, engine, net, folder, group)
        await _keep_whole_log(system)
        yield system
        group.cancel_scope.cancel()


async def _keep_whole_log(system: System) -> None:
    """Make the stream of logs refuse purges, so that the checker sees whole logs. Checkpoints are still written and
    read. How purges affect readers is tested where the log is followed as it grows (test_nothing_stale)."""
    replicas = min(len(system.nats.ports), 3)
    configs = streams(SUBJECTS, TopologyOptions(replicas=replicas, ack_wait=ACK_WAIT))
    [config] = [one for one in configs if one["name"] == SUBJECTS.commits_stream]
    async with system.jetstream() as js:
        await js.ensure_stream(config | {"deny_purge": True})
