"""Measures how fast a server updates many small change sets, and how much it adds to the update of one.

    python -m tests.benchmarks.many [--change-sets 1000] [--rounds 3] [--singles 30] [--large 100000] [--json]

There are one Spark, one `rebaser serve` beside it, and this process. Change sets have 20 values, 10 of them derived. At
the start, all are owned and up to date. `--rounds` times, in turn:

- `server`: one edit of each, all at the same time, through the client, until the last one is covered. Aim: 500 change
  sets/s.
- `updates`: the same updates without a server: plan, engine, results.
- `engine`: the engine alone, with the packets of these updates.

Then, `--singles` times, one edit of one change set, in turn with the same update without a server and an empty job; and
the same with a change set of `--large` values, all of them affected. `latency` is the time from storing the edit's
commit to storing the commit that covers it, by NATS's clock. `overhead` is that time minus the update without a server.
Aim: 25 ms.

Figures are medians in ms. `cpu` is the processor time in ms for each change set, in total and by process, which says
more than the clock on a busy machine. `load` is the number of processes that were ready to run, before and after.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog
import uvloop

from rebaser.dvu.planning.planner import plan
from rebaser.dvu.spark.engine import Engine, EngineSettings
from rebaser.dvu.update import update
from rebaser.embedded.nats import embedded_nats
from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream, OrderedConsumer
from rebaser_core.commit import Commit, Kind
from rebaser_core.encoding.envelope import DEBT
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Update
from tests.benchmarks.evaluate import graph
from tests.benchmarks.machine import load, machine, versions
from tests.benchmarks.requests import process, wait_for_server

VALUES = 10  # values that are set, and as many that are derived
AT_ONCE = 256  # change sets that are loaded at the same time
TICK = os.sysconf("SC_CLK_TCK")


def model() -> list[Update]:
    """Return a small change set: a chain of sums."""
    names = [f"v{at}" for at in range(VALUES)]
    sums = [Derive(f"s{at}", "sum", {"of": [f"s{at - 1}" if at else "v0", names[at]]}) for at in range(VALUES)]
    return [*(Set(name, 1) for name in names), *sums]


def edit(number: int) -> list[Update]:
    return [Set("v0", number)]


class Alone:
    """A change set in this process, to measure its updates without a server."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self.state = ChangeSetState()
        self.fold(Kind.REBASE, updates)

    def fold(self, kind: Kind, delta: Sequence[Any]) -> None:
        state = self.state
        covers = state.last if kind is Kind.DVU else state.covers
        state.fold(state.last + 1, Commit("", state.last, kind, 0, "", None, covers, delta=delta))

    async def update(self, engine: Engine) -> float:
        """Run one update, and return its milliseconds, without folding the results."""
        began = time.perf_counter()
        with self.state.view() as view:
            computed = await update(view, engine, label="alone")
        took = time.perf_counter() - began
        self.fold(Kind.DVU, computed)
        return 1000 * took

    def packets(self) -> list[bytes]:
        with self.state.view() as view:
            return plan(view).next_wave()


class Log:
    """When commits of the workspace `bench` were stored: by change set, the last edit and the commit that covered it
    (Unix ns)."""

    def __init__(self, consumer: OrderedConsumer) -> None:
        self._consumer = consumer
        self._wanted: set[str] = set()
        self._all = asyncio.Event()
        self.dirty: dict[str, int] = {}
        self.covered: dict[str, int] = {}

    async def run(self) -> None:
        async for message in self._consumer:
            key = message.subject.rpartition(".")[2]
            if int((message.headers or {}).get(DEBT, "0")):
                self.dirty[key] = message.timestamp_ns
                self.covered.pop(key, None)
                self._wanted.add(key)
            elif key in self.dirty:
                self.covered.setdefault(key, message.timestamp_ns)
                self._wanted.discard(key)
                if not self._wanted:
                    self._all.set()

    def expect(self, keys: Sequence[str]) -> asyncio.Event:
        """Return an event that is set when all of `keys` were edited and are covered."""
        for key in keys:
            self.dirty.pop(key, None)
            self.covered.pop(key, None)
        self._wanted = set(keys)
        self._all = asyncio.Event()
        return self._all

    def latencies(self, keys: Sequence[str]) -> list[float]:
        return [(self.covered[key] - self.dirty[key]) / 1e6 for key in keys]


class System:
    """All parts that run, with their process ids."""

    def __init__(self, client: RebaserClient, log: Log, engine: Engine, processes: dict[str, int]) -> None:
        self.client = client
        self.log = log
        self.engine = engine
        self.processes = processes
        self._turn = 1

    async def edit(self, keys: Sequence[str], updates: Callable[[int], list[Update]]) -> dict[str, float]:
        """Edit all of `keys` at the same time, and wait until they are covered."""
        self._turn += 1
        change = updates(self._turn)
        done = self.log.expect(keys)
        before, began = self.cpu(), time.time_ns()
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(key: str) -> None:
            async with limit:
                await self.client.enqueue_updates_with_reply("bench", key, change, timeout=300)

        await asyncio.gather(*(one(key) for key in keys))
        await done.wait()
        latencies = sorted(self.log.latencies(keys))
        seconds = (max(self.log.covered[key] for key in keys) - began) / 1e9
        used = {name: used - before[name] for name, used in self.cpu().items()}
        return {
            "seconds": seconds,
            "per_s": len(keys) / seconds,
            "latency": statistics.median(latencies),
            "latency_max": latencies[-1],
            "cpu": 1000 * sum(used.values()) / len(keys),
            **{f"cpu_{name}": 1000 * value / len(keys) for name, value in used.items()},
        }

    def cpu(self) -> dict[str, float]:
        """Return the seconds of processor time that each process has used."""
        used = {name: _used(pid) for name, pid in self.processes.items()}
        return used | {"workers": sum(map(_used, _tree(self.processes["spark"]))) - used["spark"]}


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _tree(int(child))


def _used(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0  # the process has just ended
    return (int(fields[11]) + int(fields[12])) / TICK


async def many(system: System, keys: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Measure all change sets at the same time: through the server, without it, and packets alone."""
    engine = system.engine
    alone = [Alone(model()) for _ in keys]
    for one in alone:
        await one.update(_Here())  # type: ignore[arg-type] # has all that is used
    found: dict[str, list[dict[str, float]]] = {"server": [], "updates": [], "engine": []}
    for turn in range(rounds + 1):  # the first turn of each is not counted
        found["server"].append(await system.edit(keys, edit))
        for one in alone:
            one.fold(Kind.REBASE, edit(turn + 2))
        packets = [one.packets() for one in alone]
        found["updates"].append(await _timed(len(keys), [partial(one.update, engine) for one in alone]))
        found["engine"].append(
            await _timed(len(keys), [partial(engine.evaluate, given, label="bench") for given in packets])
        )
    return {name: medians(runs[1:]) for name, runs in found.items()}


async def _timed(count: int, calls: Sequence[Callable[[], Awaitable[Any]]]) -> dict[str, float]:
    began = time.perf_counter()
    await asyncio.gather(*(call() for call in calls))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "per_s": count / seconds}


async def single(
    system: System, key: str, updates: Sequence[Update], change: Callable[[int], list[Update]], times: int
) -> dict[str, float]:
    """Measure edits of one change set alone, in turn with the same update without a server, and with an empty job."""
    engine = system.engine
    alone, empty = Alone(updates), Alone(model()[: VALUES + 1])
    await alone.update(engine)
    await empty.update(engine)
    runs = []
    for turn in range(times + 2):
        through = await system.edit([key], change)
        alone.fold(Kind.REBASE, change(turn + 2))
        empty.fold(Kind.REBASE, edit(turn + 2))
        runs.append(
            {
                "latency": through["latency"],
                "alone": await alone.update(engine),
                "empty": await empty.update(engine),
                **{name: value for name, value in through.items() if name.startswith("cpu")},
            }
        )
    found = medians(runs[2:])
    return {**found, "overhead": round(found["latency"] - found["alone"], 2)}


class _Here:
    """An engine that computes in this process what is not measured."""

    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        from rebaser.dvu.worker.evaluate import evaluate_packet

        return [evaluate_packet(packet) for packet in packets]


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def large(size: int) -> tuple[list[Update], Callable[[int], list[Update]]]:
    """Return a change set of islands of 100 values, and an edit that reaches all of them."""
    from tests.benchmarks.dvu import updates

    work = graph("islands", size)
    values = work.constants.tolist()
    return list(updates(work)), lambda turn: [Set(f"v{at}", value + turn) for at, value in enumerate(values)]  # type: ignore[operator] # doubles


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with Engine("local[*]", EngineSettings(scratch=Path(folder))) as engine:
            await engine.ready.wait()
            return await measure_beside(engine, options)


async def measure_beside(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """Measure with a server that uses the Spark of `engine`."""
    before = load()
    jvm = engine._sessions._jvm
    assert jvm is not None
    assert jvm._process is not None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        async with (
            embedded_nats(Path(folder)) as nats,
            Connection.connect(nats.url) as connection,
            RebaserClient.connect(nats.url) as client,
            anyio.create_task_group() as group,
        ):
            serve = ("-m", "rebaser", "serve", "--nats", nats.url, "--spark", jvm.url, "--log-level", "error")
            server = stack.enter_context(process(*serve, REBASER_QUIESCENT_PERIOD="3600"))
            await wait_for_server(nats.url, warm=True)
            subjects = Subjects()
            commits = OrderedConsumer(
                JetStream(connection), subjects.commits_stream, "rebaser.commits.bench.*", headers_only=True
            )
            async with commits as consumer:
                log = Log(consumer)
                group.start_soon(log.run)
                pids = {"server": server.pid, "spark": jvm._process.pid, "nats": nats.pid, "bench": os.getpid()}
                found = await phases(System(client, log, engine, pids), options)
                group.cancel_scope.cancel()
            stack.close()  # while NATS is still there, so that its clients can close
    whole, alone = found["many"]["server"], found["many"]["engine"]
    return {
        "machine": machine(),
        "versions": versions(),
        "load": [round(before, 1), round(load(), 1)],
        "change_sets": options.change_sets,
        **found,
        "ratio": round(whole["per_s"] / alone["per_s"], 3),
    }


async def phases(system: System, options: argparse.Namespace) -> dict[str, Any]:
    keys = [f"cs{number}" for number in range(options.change_sets)]
    await system.edit(keys, lambda _: model())
    found: dict[str, Any] = {"many": await many(system, keys, options.rounds)}
    found["single"] = await single(system, keys[0], model(), edit, options.singles)
    if options.large:
        filled, change = large(options.large)
        await system.edit(["large"], lambda _: filled)
        found["large"] = await single(system, "large", filled, change, min(options.singles, 7))
    return found


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--change-sets", type=int, default=1000)
    out.add_argument("--rounds", type=int, default=3)
    out.add_argument("--singles", type=int, default=30)
    out.add_argument("--large", type=int, default=100_000, help="values of the large change set; 0: no such change set")
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return
    print(found["machine"], found["versions"], f"load {found['load']}, {found['change_sets']} change sets", sep="\n")
    for group in ("many", "single", "large"):
        rows = found.get(group, {})
        for name, row in (rows if group == "many" else {group: rows}).items():
            if row:
                print(f"{name:8} " + "  ".join(f"{figure} {value:g}" for figure, value in row.items()))
    print(f"the server covers {found['ratio']} times as many as the engine alone could")


if __name__ == "__main__":
    main()
