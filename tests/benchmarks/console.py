"""Measures the web console: answers of its API, its processor time and memory, how soon a change is seen, and a browser
that stays open.

    python -m tests.benchmarks.console [--parts api,fleet,browser] [--values 1000000] [--change-sets 10000]
        [--asks 60] [--seconds 30] [--rate 1000] [--browser 1800] [--json]

Each part starts its own NATS and its own `rebaser console`, a process that only reads.

- `api`: one change set with `--values` values, a tenth of them derived. `cold_s` is the first page of values, with
  loading and sorting. The others are p95 in ms and the largest compressed answer in KB over `--asks` requests on one
  connection, each with another address, so that no answer is kept: a page of values, one value, the graph around one,
  a search by one word, by two words, and by a pattern. Aims: page 30, value 50, graph 100, search 250 ms; 60 KB.
  `others_p99_ms` is p99 of the table of change sets, asked again and again while the values are loaded. Aim: 200 ms.
- `fleet`: `--change-sets` change sets. `index_s` is processor time, and `index_mb` memory, from the first viewer until
  the table is there. `table_p95_ms` is a page of it, sorted and filtered in another way each time. `idle` is the share
  of a core without a viewer. `live` is that with a viewer of the overview while `--rate` commits a second arrive, and
  `live_rate` the commits that were stored. `seen_p95_s` is the time from the commit of a new change set until the
  stream of a page tells of it. Aims for 10,000: 0.5 s, 10 MB, 30 ms, 0.005, 0.06, 1.5 s.
- `browser`: the overview in Chromium, for `--browser` seconds, while `--rate` commits a second arrive: `heap_mb` after
  a collection, and `nodes`. Aims after 30 minutes: 60 MB, 3,000 nodes.
"""

import argparse
import asyncio
import http.client
import itertools
import json
import random
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
from anyio import to_thread

from rebaser.embedded.nats import embedded_nats
from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey, ulid
from rebaser_core.messages import covers_header, encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Update
from tests.benchmarks.overview import fill
from tests.benchmarks.requests import NO_SPARK, process, used, wait_for_server
from tests.support.browser import browser, opened

API = "/api/v1"
BATCH = 20_000  # values of a request
ITEMS = 9  # of a cart; with its total, a cart has ten values
SEEN = 15  # commits whose way to a page is measured


@dataclass(frozen=True)
class RunningConsole:
    """A console in a process of its own."""

    port: int
    pid: int

    @property
    def memory(self) -> float:
        """The resident memory in MB."""
        [line] = [one for one in Path(f"/proc/{self.pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
        return int(line.split()[1]) / 1024

    def ask(self, paths: Sequence[str]) -> list[tuple[float, int]]:
        """Get each path on one connection. Return the milliseconds, and the bytes of the compressed answers."""
        found, connection = [], http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        for path in paths:
            began = time.perf_counter()
            connection.request("GET", API + path, headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, (path, body[:200])
            found.append(((time.perf_counter() - began) * 1000, len(body)))
        connection.close()
        return found

    def ask_until(self, ended: threading.Event, paths: Iterator[str]) -> list[float]:
        """Get one path after the other, until `ended` is set. Return the milliseconds."""
        found = list[float]()
        while not ended.wait(0.05):
            [(ms, _)] = self.ask([next(paths)])
            found.append(ms)
        return found

    async def figures(self, name: str, paths: Sequence[str]) -> dict[str, float]:
        times = await to_thread.run_sync(self.ask, paths)
        return {
            f"{name}_p95_ms": round(p95([ms for ms, _ in times]), 1),
            f"{name}_p50_ms": round(statistics.median(ms for ms, _ in times), 1),
            f"{name}_kb": round(max(size for _, size in times) / 1024, 1),
        }

    @asynccontextmanager
    async def live(self, path: str) -> AsyncIterator[AsyncIterator[Any]]:
        """Follow a path. Yields the states that the stream tells."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        head = f"GET {API}/live?of={quote(path, safe='')} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n"
        writer.write(head.encode())

        async def states() -> AsyncIterator[Any]:
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

        try:
            yield states()
        finally:
            writer.close()


def p95(numbers: Sequence[float]) -> float:
    return sorted(numbers)[int(len(numbers) * 0.95)]


@asynccontextmanager
async def running_console(nats_url: str, port: int) -> AsyncIterator[RunningConsole]:
    given = ("-m", "rebaser", "console", "--nats", nats_url, "--http", f"127.0.0.1:{port}", "--log-level", "error")

    def wait_until_it_is_there() -> None:
        for _ in range(600):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5):
                return
            time.sleep(0.1)
        raise SystemExit("the console did not start")

    with process(*given) as child:
        await to_thread.run_sync(wait_until_it_is_there)
        yield RunningConsole(port, child.pid)


# -- values ------------------------------------------------------------------------------------------------------------


def cart(number: int) -> Iterator[Update]:
    ids = [f"cart/{number}/item/{item}/price" for item in range(ITEMS)]
    yield from (Set(id_, random.randrange(10_000) / 100) for id_ in ids)
    yield Derive(f"cart/{number}/total", "sum", {"values": ids})


async def api(options: argparse.Namespace) -> dict[str, float]:
    carts = options.values // (ITEMS + 1)
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats:
            serve = ("-m", "rebaser", "serve", "--nats", nats.url, "--spark", NO_SPARK, "--log-level", "error")
            with process(*serve):
                await wait_for_server(nats.url, warm=False)
                async with RebaserClient.connect(nats.url) as client:
                    for start in range(0, carts, BATCH // (ITEMS + 1)):
                        some = range(start, min(start + BATCH // (ITEMS + 1), carts))
                        updates = [one for number in some for one in cart(number)]
                        await client.enqueue_updates_with_reply("bench", "main", updates, timeout=120)
            async with running_console(nats.url, options.port) as console:
                return await ask_values(console, carts, options.asks)


async def load_beside_others(console: RunningConsole, path: str) -> tuple[float, list[float]]:
    """Get `path`, and the table of change sets all the while. Return the milliseconds of both."""
    ended, cold, others = threading.Event(), list[float](), list[float]()

    async def ask() -> None:
        paths = (f"/change-sets?state=all&offset={number}" for number in itertools.count())
        others.extend(await to_thread.run_sync(console.ask_until, ended, paths))

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(0.1)  # the other viewer comes first
        cold.extend(ms for ms, _ in await to_thread.run_sync(console.ask, [path]))
        ended.set()
    return cold[0], others


async def ask_values(console: RunningConsole, carts: int, asks: int) -> dict[str, float]:
    base, numbers = "/change-sets/bench/main", random.sample(range(carts), min(asks, carts))
    await to_thread.run_sync(console.ask, ["/change-sets"])  # the watch begins
    cold, others = await load_beside_others(console, f"{base}/values")
    found = {
        "cold_s": round(cold / 1000, 2),
        "others_p99_ms": round(sorted(others)[int(len(others) * 0.99)], 1),
        "others": len(others),
        "memory_mb": round(console.memory),
    }
    searches = [str(number) for number in numbers]  # each is another one, and each id has digits
    for name, paths in {
        "page": [f"{base}/values?prefix=cart/&after=cart/{number}/" for number in numbers],
        "value": [f"{base}/value?id=cart/{number}/total" for number in numbers],
        "graph": [f"{base}/graph?id=cart/{number}/total" for number in numbers],
        "search": [f"{base}/values?q={word}" for word in searches],
        "two_words": [f"{base}/values?q={word}%20price" for word in searches],
        "pattern": [f"{base}/values?q=cart/*{word}*/total" for word in searches],
    }.items():
        found |= await console.figures(name, paths)
    return found


# -- many change sets --------------------------------------------------------------------------------------------------


async def fleet(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats, Connection.connect(nats.url) as connection:
            js = JetStream(connection, timeout=30)
            await ensure_topology(js, Subjects(), TopologyOptions())
            await fill(js, Subjects(), options.change_sets, 2000)
            async with running_console(nats.url, options.port) as console:
                return await look(console, js, options)


async def look(console: RunningConsole, js: JetStream, options: argparse.Namespace) -> dict[str, float]:
    await anyio.sleep(2)  # it starts
    before, memory = used(console.pid), console.memory
    await anyio.sleep(options.seconds)
    idle = (used(console.pid) - before) / options.seconds
    before = used(console.pid)
    await to_thread.run_sync(console.ask, ["/change-sets"])
    found = {
        "index_s": round(used(console.pid) - before, 2),
        "index_mb": round(console.memory - memory, 1),
        "idle": round(idle, 4),
    }
    sorts = ("name", "urgency", "recent", "queue", "changes")
    tables = [f"/change-sets?sort={sorts[at % 5]}&state=all&offset={at}" for at in range(options.asks)]
    found |= await console.figures("table", tables)
    async with console.live("/overview") as states:
        await anext(states)
        before = used(console.pid)
        stored = await store(js, options.change_sets, options.rate, options.seconds)
        found |= {
            "live": round((used(console.pid) - before) / options.seconds, 4),
            "live_rate": round(stored / options.seconds),
        }
    found["seen_p95_s"] = round(p95([await seen(console, js, number) for number in range(SEEN)]), 2)
    return found


def commit_of(key: str) -> tuple[str, bytes, dict[str, str]]:
    commit = Commit(ulid(1, bytes(10)), 0, Kind.REBASE, 1, "bench", None, None, delta=(Set("a", 1),))
    headers, payload = encode_commit(commit)
    return Subjects().commits(ChangeSetKey("bench", key)), payload, headers | covers_header(commit)


async def store(js: JetStream, change_sets: int, rate: int, seconds: float) -> int:
    """Store `rate` commits a second, in change sets at random. Return how many were stored."""
    stored, began = 0, time.perf_counter()

    async def one() -> None:
        nonlocal stored
        await js.publish(*commit_of(f"cs-{random.randrange(change_sets)}"))
        stored += 1

    async with anyio.create_task_group() as group:
        sent = 0
        while (now := time.perf_counter() - began) < seconds:
            while sent < now * rate and sent - stored < 256:
                group.start_soon(one)
                sent += 1
            await anyio.sleep(0.01)
    return stored


async def seen(console: RunningConsole, js: JetStream, number: int) -> float:
    """Return the seconds from the first commit of a change set until a page tells of it."""
    name = f"new-{number}"
    async with console.live(f"/change-sets?q={name}") as states:
        await anext(states)
        await anyio.sleep(random.random() * 2)
        began = time.perf_counter()
        await js.publish(*commit_of(name))
        async for state in states:
            if state["matching"]:
                break
        return time.perf_counter() - began


# -- a browser ---------------------------------------------------------------------------------------------------------


async def in_browser(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as nats, Connection.connect(nats.url) as connection:
            js = JetStream(connection, timeout=30)
            await ensure_topology(js, Subjects(), TopologyOptions())
            await fill(js, Subjects(), options.change_sets, 2000)
            async with running_console(nats.url, options.port) as console, browser() as driver, opened(driver) as page:
                await page.goto(f"http://127.0.0.1:{console.port}/")
                await page.wait_for_selector(".tiles")
                stored = await store(js, options.change_sets, options.rate, options.browser)
                debugger = await page.context.new_cdp_session(page)
                await debugger.send("Performance.enable")
                await debugger.send("HeapProfiler.collectGarbage")
                metrics = (await debugger.send("Performance.getMetrics"))["metrics"]
                found = {one["name"]: one["value"] for one in metrics}
    return {
        "heap_mb": round(found["JSHeapUsedSize"] / (1 << 20), 1),
        "nodes": found["Nodes"],
        "browser_rate": round(stored / options.browser),
    }


PARTS = {"api": api, "fleet": fleet, "browser": in_browser}


async def measure(options: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in options.parts:
        found |= await PARTS[part](options)
    return found


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    out.add_argument("--values", type=int, default=1_000_000)
    out.add_argument("--change-sets", type=int, default=10_000)
    out.add_argument("--asks", type=int, default=60, help="requests of each kind")
    out.add_argument("--seconds", type=float, default=30.0)
    out.add_argument("--rate", type=int, default=1000, help="commits a second")
    out.add_argument("--browser", type=float, default=1800.0, help="seconds that the browser stays open")
    out.add_argument("--port", type=int, default=18420)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    found = asyncio.run(measure(options))
    if options.json:
        print(json.dumps(found))
    else:
        for name, figure in found.items():
            print(f"{name:16}{figure:12g}")


if __name__ == "__main__":
    main()
