"""Causes one fault at a time, and checks its consequences."""

import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import run
from types import MappingProxyType
from typing import Any

import anyio
import pytest
from anyio import to_thread

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Commit, Derive, RebaserClient, Set
from rebaser_core.ids import ChangeSetKey
from rebaser_core.values import State
from tests.chaos.checker import Evidence, Expectations, check, excerpt
from tests.chaos.history import History, read_history
from tests.chaos.nemeses import fill, free
from tests.chaos.rest import at_rest
from tests.chaos.system import ACK_WAIT, Daemon, One, System, installation
from tests.support.fleet import servers
from tests.support.history import check_history, check_replies, commit_of, commits_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

ENOUGH = 400.0  # seconds; a bound against hanging
SOME = 20  # events that a test waits for before it continues
KEYS = [ChangeSetKey.of("faults", f"cs{number}") for number in range(3)]


class Load:
    """Client processes that write to `KEYS` of a system until `finish`."""

    def __init__(self, system: System) -> None:
        self.system = system

    def history(self) -> History:
        return read_history(self.system.histories.glob("*.jsonl"))

    async def more(self, *events: str) -> None:
        """Return when the histories have `SOME` more of each of these events."""
        before = self.history().counts
        await until(lambda: all(self.history().counts[event] >= before[event] + SOME for event in events))

    async def finish(self, *, owned: bool = False) -> list[Evidence]:
        """Stop the clients, wait until all work is done, and check everything."""
        complaints = await self.system.stop_clients()
        evidence, restless = await at_rest(self.system, KEYS, owned=owned)
        history = self.history()
        found = restless + check(history, evidence, Expectations())
        assert [*complaints, *self.system.ended] == []
        assert not found, "\n".join(excerpt(one, evidence, history) for one in found[:5])
        return evidence


@asynccontextmanager
async def under_load(
    folder: Path, settings: Mapping[str, object] = MappingProxyType({}), **options: Any
) -> AsyncIterator[tuple[System, Load]]:
    """Start two servers without Spark, and two clients, and yield when the clients have got answers."""
    async with installation(folder, spark=False, **options) as system:
        await system.start_servers(2, dict(settings))
        load = Load(system)
        system.start_histories("histories")
        plan = {
            "workspace": "faults",
            "change_sets": [key.change_set for key in KEYS],
            "derived": False,
            "timeout": 2.0,
        }
        await system.start_clients(2, plan, random.Random(4))
        await load.more("applied")
        yield system, load


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(ENOUGH):
        while True:
            if await to_thread.run_sync(holds):
                return
            await anyio.sleep(0.1)


async def last_owner(system: System, key: ChangeSetKey) -> Daemon:
    async with system.client() as client:
        last = (await commits_of(client, key.workspace, key.change_set))[-1]
    return next(daemon for daemon in system.servers if daemon.name == last.owner)


def terms(log: Sequence[Commit]) -> list[Commit]:
    """Return the first commit of each owner's term."""
    return [
        commit
        for before, commit in zip((None, *log), log, strict=False)
        if before is None or before.owner != commit.owner
    ]


async def test_a_server_that_slept_three_leases_is_fenced_and_works_again(tmp_path: Path) -> None:
    """The server is paused for three ack waits. None of its pending writes succeeds: each of its terms begins after it
    has loaded the log. Then the other server leaves, and this one takes everything over again."""
    async with under_load(tmp_path, {"quiescent_period": 600}) as (system, load):
        sleeper = await last_owner(system, KEYS[0])
        [other] = [daemon for daemon in system.servers if daemon is not sleeper]
        process = await system.server_up(sleeper)
        sleeper.signal(signal.SIGSTOP)
        await anyio.sleep(3 * ACK_WAIT)
        await until_owned_by(system, other)
        sleeper.signal(signal.SIGCONT)
        assert (await process.wait_for("lease_lost"))["owned"] > 0
        await load.more("applied", "stored")
        other.signal(signal.SIGSTOP)  # takes no further part
        await until_owned_by(system, sleeper)
        await load.more("applied")
        other.signal(signal.SIGCONT)
        evidence = await load.finish(owned=True)
        assert sleeper.lives == 1
        loaded = {
            (event["change_set"], event["seq"]) for event in process.events if event["event"] == "change_set_owned"
        }
        begun = {
            (one.change_set, commit.previous)
            for one in evidence
            for commit in terms(one.log)
            if commit.owner == sleeper.name
        }
        assert begun <= loaded


async def until_owned_by(system: System, daemon: Daemon) -> None:
    """Return when the server has written the last commit of every change set."""
    with anyio.fail_after(ENOUGH):
        while True:
            if {(await last_owner(system, key)).name for key in KEYS} == {daemon.name}:
                return
            await anyio.sleep(0.2)


@pytest.mark.long  # the test of a full disk is similar, and not long
async def test_nats_may_store_no_more_and_then_may_again(tmp_path: Path) -> None:
    """nats-server reaches its storage limit. Clients get errors, or answers about what was stored before. When there is
    room again, all work continues automatically."""
    async with under_load(tmp_path) as (system, load), system.jetstream() as js:
        await fill(js)
        await load.more("failed")
        await free(js)
        await load.more("applied", "stored")
        await load.finish()
        assert [daemon.lives for daemon in (*system.servers, *system.clients)] == [1, 1, 1, 1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    run(["umount", "--lazy", folder], check=True)


async def test_the_disk_is_full_and_then_it_is_not(tmp_path: Path, small_disk: Path) -> None:
    """Writes of nats-server fail, it disables JetStream, and it is restarted when there is room. Clients got errors or
    answers, nothing that was acknowledged is lost, and no server or client had to be restarted."""
    async with under_load(tmp_path, data_dir=small_disk / "nats", sync_interval="always") as (system, load):
        assert isinstance(system.nats, One)
        ballast = small_disk / "ballast"
        await to_thread.run_sync(fill_up, ballast)
        await load.more("failed")
        ballast.unlink()
        await system.nats.server.kill()
        await system.nats.server.start()
        await load.more("applied", "stored")
        await load.finish()
        assert [daemon.lives for daemon in (*system.servers, *system.clients)] == [1, 1, 1, 1]


def fill_up(ballast: Path) -> None:
    """Fill the rest of a disk."""
    with ballast.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


GATE = """
import pathlib, time
FOLDER = pathlib.Path({folder!r})
def gate(inputs, params):
    (FOLDER / "entered").touch()
    while not (FOLDER / "open").exists():
        time.sleep(0.02)
    return inputs["of"]
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a function `gate` for processes started from now on, and return the folder through which it communicates.
    It reports there that it runs, and returns its input when a test allows it."""
    folder = tmp_path / "gate"
    info = folder / "chaos_gate-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "chaos_gate.py").write_text(GATE.format(folder=str(folder)))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chaos_gate\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rebaser.functions]\ngate = chaos_gate:gate\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.mark.long  # half a minute; `test_chaos` kills Spark, too, but not certainly during an update
@pytest.mark.spark
async def test_spark_dies_in_the_middle_of_a_dvu(own_nats: EmbeddedNats, gate: Path, tmp_path: Path) -> None:
    """The JVM is killed while a worker computes: requests are applied, the server starts another JVM, and the DVU is
    completed."""
    async with (
        servers(own_nats.url, "alone", quiescent_period=600, scratch=tmp_path / "spark") as [server],
        RebaserClient.connect(own_nats.url) as client,
    ):
        derived = [Derive("held", "gate", {"of": "n"}), Derive("total", "sum", {"of": ["held", "n"]})]
        replies = [await client.enqueue_updates_with_reply("faults", "spark", [Set("n", 1), *derived])]
        await until((gate / "entered").exists)
        os.kill(await jvm_of(server.process.pid), signal.SIGKILL)
        await server.wait_for("dvu_job_failed")
        replies.append(await client.enqueue_updates_with_reply("faults", "spark", [Set("n", 20)]))
        assert (await client.values("faults", "spark"))["total"].state is State.STALE
        (gate / "open").touch()
        await client.wait_covered("faults", "spark", commit_of(replies[-1]), timeout=ENOUGH)
        values = await client.values("faults", "spark")
        assert [(values[id_].value, values[id_].state) for id_ in ("held", "total")] == [(20, State.OK), (40, State.OK)]
        commits = await commits_of(client, "faults", "spark")
        check_history(commits)
        check_replies(commits, replies)
        assert server.count("spark_ready") == 2


async def jvm_of(pid: int) -> int:
    """Return the process id of a server's embedded Spark."""
    done = await anyio.run_process(["ps", "-o", "pid=,comm=", "--ppid", str(pid)])
    [jvm] = [line.split()[0] for line in done.stdout.decode().splitlines() if "java" in line]
    return int(jvm)
