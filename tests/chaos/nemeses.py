"""The faults. Each is caused, lasts for a while, and is ended before its function returns, even after an error.

The seed decides which fault strikes which process for how long, but not the exact moment.
"""

import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path

import anyio

from rebaser_client.jetstream import ApiError, JetStream
from rebaser_core.errors import RebaserError
from tests.chaos.system import ACK_WAIT, ENOUGH, SUBJECTS, Daemon, One, System, Three

AT_ONCE = 2  # faults at the same time
FILLER = "CHAOS_FILLER"
FILLING = 900 * 1024  # bytes per message
SQUEEZE = 24 * 1024 * 1024  # bytes that a server with limited memory may still allocate

Fault = Callable[[System, random.Random], Coroutine[None, None, str]]  # returns a description of what it did


async def kill(system: System, rng: random.Random) -> str:
    """Kill a server with SIGKILL."""
    daemon = rng.choice(system.servers)
    await daemon.running()
    daemon.signal(signal.SIGKILL)
    await anyio.sleep(rng.uniform(0.5, 2))
    return daemon.name


async def term(system: System, rng: random.Random) -> str:
    """Stop a server with SIGTERM, as a deployment does."""
    daemon = rng.choice(system.servers)
    await daemon.running()
    daemon.signal(signal.SIGTERM)
    await anyio.sleep(rng.uniform(0.5, 2))
    return daemon.name


async def pause(system: System, rng: random.Random) -> str:
    """Pause a server with SIGSTOP, mostly for longer than its lease."""
    daemon, seconds = rng.choice(system.servers), ACK_WAIT * rng.uniform(0.7, 3)
    await _stopped(daemon, seconds)
    return f"{daemon.name} {seconds:.1f} s"


async def client(system: System, rng: random.Random) -> str:
    """Kill a client with SIGKILL, or pause it with SIGSTOP."""
    daemon = rng.choice(system.clients)
    if rng.random() < 0.5:
        await daemon.running()
        daemon.signal(signal.SIGKILL)
        await anyio.sleep(rng.uniform(0.2, 1))
        return f"{daemon.name} killed"
    await _stopped(daemon, seconds := rng.uniform(0.5, 4))
    return f"{daemon.name} {seconds:.1f} s"


async def cut(system: System, rng: random.Random) -> str:
    """Break the connection of one process several times."""
    daemon, times, broken = rng.choice([*system.servers, *system.clients]), rng.randint(1, 5), 0
    while broken < times:  # a process that is not connected now will connect again
        for link in daemon.links:
            broken += await link.cut()
        await anyio.sleep(rng.uniform(0, 0.6))
    return f"{daemon.name} {broken} times"


async def partition(system: System, rng: random.Random) -> str:
    """Separate one process from all others: connections are refused, or they stay open while their bytes are lost."""
    daemon, seconds = rng.choice([*system.servers, *system.clients]), ACK_WAIT * rng.uniform(0.3, 3)
    silent = rng.random() < 0.5
    try:
        for link in daemon.links:
            if silent:
                link.stall()
            else:
                link.refusing = True
                await link.cut()
        await anyio.sleep(seconds)
        for link in daemon.links if silent and rng.random() < 0.5 else ():
            await link.cut()  # otherwise, bytes that are on their way would arrive late
    finally:
        for link in daemon.links:
            link.heal()
    return f"{daemon.name} {'silently ' if silent else ''}{seconds:.1f} s"


async def delay(system: System, rng: random.Random) -> str:
    """Slow the network down, for everybody or for one process."""
    daemon = rng.choice([None, *system.servers, *system.clients])
    links = system.links if daemon is None else daemon.links
    late, seconds = rng.uniform(0.002, 0.08), rng.uniform(1, 4)
    try:
        for link in links:
            link.delay = late
        await anyio.sleep(seconds)
    finally:
        for link in links:
            link.delay = 0.0
    return f"{daemon.name if daemon else 'all'} by {late * 1000:.0f} ms, {seconds:.1f} s"


async def memory(system: System, rng: random.Random) -> str:
    """Limit a server's memory, and then kill the server, as the OOM killer does."""
    daemon, seconds = rng.choice(system.servers), rng.uniform(0.5, 2.5)
    await system.server_up(daemon)
    pid = await daemon.running()
    daemon.killed.add(pid)
    try:
        _squeeze(pid)
        await anyio.sleep(seconds)
    except (ProcessLookupError, FileNotFoundError):
        pass
    finally:
        if daemon.pid == pid:
            daemon.signal(signal.SIGKILL)
    return f"{daemon.name} {seconds:.1f} s"


async def spark(system: System, rng: random.Random) -> str:
    """Kill Spark with SIGKILL, whatever it is computing."""
    await system.spark.restart()
    return "restarted"


# -- a single nats-server ----------------------------------------------------------------------------------------------


async def nats(system: System, rng: random.Random) -> str:
    """Kill nats-server with SIGKILL, and start it again with its stored data."""
    assert isinstance(system.nats, One)
    seconds = rng.choice((0.0, rng.uniform(0, 3)))
    await system.nats.server.kill()
    with anyio.CancelScope(shield=True):
        await anyio.sleep(seconds)
        await system.nats.server.start()
    return f"{seconds:.1f} s"


async def freeze(system: System, rng: random.Random) -> str:
    """Pause nats-server with SIGSTOP."""
    assert isinstance(system.nats, One)
    pid, seconds = system.nats.server.pid, rng.uniform(0.3, 4)
    os.kill(pid, signal.SIGSTOP)
    try:
        await anyio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    return f"{seconds:.1f} s"


async def disk(system: System, rng: random.Random) -> str:
    """Fill JetStream's storage, and make room again."""
    seconds = rng.uniform(1, 4)
    async with system.jetstream() as js:
        try:
            stored = await fill(js)
            await anyio.sleep(seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await free(js)
    return f"{stored // 2**20} MiB, {seconds:.1f} s"


async def fill(js: JetStream) -> int:
    """Store messages until no more are accepted, and return their bytes."""
    stored = 0
    await js.ensure_stream({"name": FILLER, "subjects": [FILLER], "storage": "file", "discard": "new"})
    while True:
        try:
            await js.publish(FILLER, bytes(FILLING))
        except ApiError as error:
            if stored:
                return stored
            raise AssertionError(f"no room to begin with: {error.message}") from error
        stored += FILLING


async def free(js: JetStream) -> None:
    """Make room again; repeated until it succeeds."""
    while True:
        try:
            await js.call(f"STREAM.DELETE.{FILLER}")
        except ApiError as error:
            if error.status == 404:
                return
        except RebaserError:
            pass
        await anyio.sleep(0.2)


# -- a cluster ---------------------------------------------------------------------------------------------------------


async def leader(system: System, rng: random.Random) -> str:
    """Kill the node that leads a stream, and start it again."""
    assert isinstance(system.nats, Three)
    cluster, stream = system.nats.cluster, _any_stream(rng)
    node = await cluster.leader_of(stream)
    await cluster.kill(node)
    with anyio.CancelScope(shield=True):
        await anyio.sleep(rng.uniform(0, 4))
        await cluster.start(node)
    return f"{node} of {stream}"


async def stepdown(system: System, rng: random.Random) -> str:
    """Make another node the leader of a stream."""
    assert isinstance(system.nats, Three)
    stream = _any_stream(rng)
    return f"{stream} to {await system.nats.cluster.stepdown(stream)}"


async def node(system: System, rng: random.Random) -> str:
    """Pause the node that leads a stream with SIGSTOP, sometimes for long enough that another one is elected."""
    assert isinstance(system.nats, Three)
    cluster, stream, seconds = system.nats.cluster, _any_stream(rng), rng.uniform(1, 8)
    name = await cluster.leader_of(stream)
    cluster.pause(name)
    try:
        await anyio.sleep(seconds)
    finally:
        cluster.resume(name)
    return f"{name} of {stream} {seconds:.1f} s"


def _any_stream(rng: random.Random) -> str:
    return rng.choice((SUBJECTS.requests_stream, SUBJECTS.tasks_stream, SUBJECTS.commits_stream))


# ----------------------------------------------------------------------------------------------------------------------

# Name, function, and the part of the system that no other fault may use at the same time.
_ANYWHERE: dict[str, tuple[Fault, str]] = {
    "kill": (kill, "server"),
    "term": (term, "server"),
    "pause": (pause, "server"),
    "client": (client, "client"),
    "cut": (cut, "links"),
    "partition": (partition, "links"),
    "delay": (delay, "links"),
    "spark": (spark, "spark"),
}
if sys.platform == "linux":
    _ANYWHERE["memory"] = memory, "server"
_ONE: dict[str, tuple[Fault, str]] = {"nats": (nats, "nats"), "freeze": (freeze, "nats"), "disk": (disk, "nats")}
_THREE: dict[str, tuple[Fault, str]] = {
    "leader": (leader, "nats"),
    "stepdown": (stepdown, "nats"),
    "node": (node, "nats"),
}


def kinds(clustered: bool) -> dict[str, tuple[Fault, str]]:
    """Return the faults for a cluster or for a single nats-server, with those of the parts around it."""
    return _ANYWHERE | (_THREE if clustered else _ONE)


class Nemesis:
    """Causes faults for some time, each kind at least once, and a few at the same time."""

    def __init__(self, system: System, rng: random.Random, names: list[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._system = system
        self._rng = rng
        self._kinds = {name: kinds(isinstance(system.nats, Three))[name] for name in names}
        self._taken: set[str] = set()
        self._freed = anyio.Event()
        self._began = time.monotonic()

    async def run(self, seconds: float) -> None:
        """Cause faults, and return when the last one is over."""
        missing = set(self._kinds)
        deck: list[str] = []
        async with anyio.create_task_group() as group:
            while missing or time.monotonic() - self._began < seconds:
                if not deck:
                    deck = self._rng.sample(sorted(self._kinds), len(self._kinds))
                name = deck.pop()
                fault, takes = self._kinds[name]
                while takes in self._taken or len(self._taken) >= AT_ONCE:
                    self._freed = anyio.Event()
                    await self._freed.wait()
                self._taken.add(takes)
                missing.discard(name)
                group.start_soon(self._make, name, fault, takes, random.Random(self._rng.random()))
                await anyio.sleep(self._rng.uniform(0.2, 1.5))

    async def _make(self, name: str, fault: Fault, takes: str, rng: random.Random) -> None:
        began = time.monotonic() - self._began
        with anyio.fail_after(ENOUGH):
            what = await fault(self._system, rng)
        self.counts[name] += 1
        print(f"  {began:6.1f} s {name}: {what}", flush=True)
        self._taken.discard(takes)
        self._freed.set()


def _squeeze(pid: int) -> None:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + SQUEEZE, resource.RLIM_INFINITY))


async def _stopped(daemon: Daemon, seconds: float) -> None:
    pid = await daemon.running()
    daemon.signal(signal.SIGSTOP)
    try:
        await anyio.sleep(seconds)
    finally:
        if daemon.pid == pid:
            daemon.signal(signal.SIGCONT)
