"""Measures a server with ten thousand change sets: cold starts, memory, handover, takeover.

    python -m tests.benchmarks.owners [--change-sets 10000] [--in-flight 256] [--cold 200] [--json]

Each server runs in a process of its own, without Spark. Steps:

- `cold`: the first request of each change set, `--in-flight` at a time; CPU time per change set of each process.
- `owned`: resident memory of the server and of nats-server, with all change sets owned and idle.
- `beside`: the first requests of `--cold` further change sets, one after the other, beside all the others.
- `handover`: a second server starts, and the first one gets SIGTERM: the time until it has ended, and until the second
  one owns all change sets.
- `takeover`: a third server starts, and the second one is killed: the same times.
- `crowded`: a server with `--slots` slots, all taken by idle change sets: the first requests of `--cold` further change
  sets, one after the other.

`turn_ms` is the longest turn of the server's event loop in this step, as CPU time of its thread, so that other
processes do not count. CPU times are milliseconds per change set.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import structlog
import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser.serving import serve
from rebaser.settings import load_settings
from rebaser_client import RebaserClient, Set
from rebaser_client.admin.servers import ping
from rebaser_client.jetstream import Connection
from rebaser_core.streams.subjects import Subjects
from tests.support.fleet import NO_SPARK

BEAT = 0.005  # seconds between two measurements of the loop
LIMIT = 300.0  # seconds until a step counts as failed
MIB = 1024 * 1024


class Turns:
    """Measures the longest turn of the event loop, as CPU seconds of its thread between two timers that are `BEAT`
    apart."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._loop = asyncio.get_running_loop()
        self._seen = time.thread_time()
        self._loop.call_later(BEAT, self._beat)

    def _beat(self) -> None:
        now = time.thread_time()
        self.longest, self._seen = max(self.longest, now - self._seen), now
        self._loop.call_later(BEAT, self._beat)


async def run_server() -> None:
    """Run a server until SIGTERM. For each line on standard input, print the longest turn since the last line, in
    ms."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    turns = Turns()

    def answer() -> None:
        for _ in sys.stdin:
            print(round(turns.longest * 1000, 1), flush=True)
            turns.longest = 0.0

    threading.Thread(target=answer, daemon=True).start()
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, scope.cancel)
        await serve(load_settings(), ready=lambda: print("ready", flush=True))
    print(round(turns.longest * 1000, 1), flush=True)


class ServerUnderTest:
    """A server in a process of its own."""

    def __init__(self, child: asyncio.subprocess.Process, name: str) -> None:
        self.child = child
        self.name = name

    async def line(self) -> str:
        assert self.child.stdout is not None
        return (await self.child.stdout.readline()).decode().strip()

    async def turn(self) -> float:
        """Return the longest turn since the last call, in ms."""
        assert self.child.stdin is not None
        self.child.stdin.write(b"\n")
        return float(await self.line())


@asynccontextmanager
async def running(
    url: str, name: str, checkout: Path | None = None, **settings: object
) -> AsyncIterator[ServerUnderTest]:
    """Run a server of the repository in `checkout`; None means this one."""
    given = {"spark": NO_SPARK, "nats_url": url, "server_id": name, "quiescent_period": 3600} | settings
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.benchmarks.owners", "serve"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=checkout,
        env={**os.environ, **{f"REBASER_{key.upper()}": str(one) for key, one in given.items()}},
    )
    server = ServerUnderTest(child, name)
    try:
        assert await server.line() == "ready"
        yield server
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def cpu(pid: int) -> float:
    """Return the CPU seconds that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Return the resident memory in MiB."""
    return round(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB, 1)


class Owners:
    """The steps of one run, with NATS at `url` in the process `nats`."""

    def __init__(self, url: str, nats: int, client: RebaserClient, connection: Connection, options: Any) -> None:
        self._url = url
        self._nats = nats
        self._client = client
        self._connection = connection
        self._options = options
        self.found: dict[str, dict[str, float]] = {}

    async def run(self) -> dict[str, dict[str, float]]:
        count = self._options.change_sets
        room: dict[str, Any] = {"concurrency": max(count * 2, 100)}
        async with running(self._url, "first", **room) as first:
            await self._cold(first, count)
            await anyio.sleep(1)  # the last requests are being deleted
            self.found["owned"] = {"server_mib": resident(first.child.pid), "nats_mib": resident(self._nats)}
            await self._beside("beside", first)
            owned = count + self._options.cold
            async with running(self._url, "second", **room) as second:
                await self._replace("handover", first, second, owned, signal.SIGTERM)
                async with running(self._url, "third", **room) as third:
                    await self._replace("takeover", second, third, owned, signal.SIGKILL)
                    third.child.terminate()
                    await third.child.wait()
        await self._purge()
        async with running(self._url, "crowded", concurrency=self._options.slots) as crowded:
            await self._touch([f"full{number}" for number in range(self._options.slots)])
            await anyio.sleep(1)
            await self._beside("crowded", crowded)
        return self.found

    async def _touch(self, keys: list[str]) -> None:
        todo = iter(keys)

        async def caller() -> None:
            for key in todo:
                await self._client.enqueue_updates_with_reply("bench", key, [Set("n", 1)], timeout=LIMIT)

        await asyncio.gather(*(caller() for _ in range(self._options.in_flight)))

    async def _cold(self, server: ServerUnderTest, count: int) -> None:
        await self._touch([f"warm{number}" for number in range(min(count, 100))])
        pids = {"server": server.child.pid, "nats": self._nats, "client": os.getpid()}
        before = {name: cpu(pid) for name, pid in pids.items()}
        await server.turn()
        began = time.perf_counter()
        await self._touch([f"cs{number}" for number in range(count)])
        seconds = time.perf_counter() - began
        used = {f"cpu_{name}": round((cpu(pid) - before[name]) * 1000 / count, 3) for name, pid in pids.items()}
        per_cpu = 2000 / sum(used.values())  # with two cores, if both were always busy
        self.found["cold"] = {"per_s": round(count / seconds), **used, "per_s_of_2_cores": round(per_cpu)}
        self.found["cold"]["turn_ms"] = await server.turn()

    async def _beside(self, step: str, server: ServerUnderTest) -> None:
        await server.turn()
        milliseconds = []
        for number in range(self._options.cold):
            began = time.perf_counter()
            await self._client.enqueue_updates_with_reply("bench", f"{step}{number}", [Set("n", 1)], timeout=LIMIT)
            milliseconds.append((time.perf_counter() - began) * 1000)
        milliseconds.sort()
        p50, p99 = statistics.median(milliseconds), milliseconds[int(len(milliseconds) * 0.99)]
        self.found[step] = {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "turn_ms": await server.turn()}

    async def _replace(
        self, step: str, old: ServerUnderTest, new: ServerUnderTest, count: int, signal_number: int
    ) -> None:
        """Send a signal to `old`, and wait until it has ended and `new` owns `count` change sets."""
        pids = {"new": new.child.pid, "nats": self._nats}
        before = {name: cpu(pid) for name, pid in pids.items()}
        found = self.found[step] = {}
        await new.turn()
        if signal_number == signal.SIGTERM:
            await old.turn()
        began = time.perf_counter()
        old.child.send_signal(signal_number)

        async def wait_for_end() -> None:
            if signal_number == signal.SIGTERM:
                found["turn_ms"] = float(await old.line())
            await old.child.wait()
            found["ended_s"] = round(time.perf_counter() - began, 2)

        ending = asyncio.create_task(wait_for_end())
        with anyio.fail_after(LIMIT):
            while await self._owned(new.name) < count:  # noqa: ASYNC110 - another process is asked
                await anyio.sleep(0.2)
        found["owned_s"] = round(time.perf_counter() - began, 2)
        await ending
        for name, pid in pids.items():
            found[f"cpu_{name}"] = round((cpu(pid) - before[name]) * 1000 / count, 3)
        found["new_turn_ms"] = await new.turn()
        found["new_mib"], found["nats_mib"] = resident(new.child.pid), resident(self._nats)

    async def _owned(self, name: str) -> int:
        servers = await ping(self._connection, Subjects())
        return next((server.owned for server in servers if server.id == name), 0)

    async def _purge(self) -> None:
        """Delete all tasks, so that the next server owns nothing."""
        from rebaser_client.jetstream import JetStream

        await JetStream(self._connection).purge(Subjects().tasks_stream)


async def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            embedded_nats(Path(folder)) as nats,
            Connection.connect(nats.url) as connection,
            RebaserClient.connect(nats.url) as client,
        ):
            return await Owners(nats.url, nats.pid, client, connection, options).run()


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--change-sets", type=int, default=10_000)
    out.add_argument("--in-flight", type=int, default=256)
    out.add_argument("--cold", type=int, default=200)
    out.add_argument("--slots", type=int, default=1000)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(run_server())
        return
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return
    for step, figures in found.items():
        print(f"{step:9}" + "  ".join(f"{name} {value:g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
