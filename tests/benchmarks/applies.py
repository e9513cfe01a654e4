"""Measures how the time of an apply depends on the number of values in its target.

    python -m tests.benchmarks.applies [--values 1000 1000000] [--rounds 20] [--old CHECKOUT] [--json]

For each size there is a server with a NATS of its own, and one target. In each round, each target gets a branch; the
branch and the target are both edited, one value each; then the branch is rebased and applied. The sizes take turns. The
first edit of a branch includes loading its state. `ms` is the median time until the answer, and `least_ms` is the
shortest one, which says more on a busy machine. `cpu_server` and `cpu_nats` are medians of the processor time in ms,
including the work that follows the answer. With `--old`, a server of another checkout of this repository is measured in
turn with the server of this one.

Aim: an apply of one edit to a million values takes at most 10 ms, and at most 1.3 times as long as to a thousand.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import uvloop

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_core.updates import Update
from tests.benchmarks.owners import running

BATCH = 5000  # values per request while a target is filled
PAUSE = 0.03  # seconds after a step, for the work that follows the answer
WORKSPACE = "applies"
TIMEOUT = 300.0


def cpu_ms(pid: int) -> float:
    """Return the milliseconds of processor time that the threads of a process have used."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used += int((task / "schedstat").read_text().split()[0])
    return used / 1e6


class Installation:
    """A server of one checkout, with a NATS of its own."""

    def __init__(self, client: RebaserClient, pids: dict[str, int]) -> None:
        self._client = client
        self._pids = pids
        self._turn = 0

    async def fill(self, values: int) -> None:
        for start in range(0, values, BATCH):
            await self._send(f"t{values}", [Set(f"v/{at}", at) for at in range(start, min(start + BATCH, values))])

    async def _send(self, name: str, updates: list[Update]) -> None:
        await self._client.enqueue_updates_with_reply(WORKSPACE, name, updates, timeout=TIMEOUT)

    async def round(self, values: int) -> dict[str, dict[str, float]]:
        """Return the figures of each step for the target of `values` values."""
        self._turn += 1
        client, target = self._client, f"t{values}"
        name = f"b{self._turn}"
        ours, theirs = 2 * self._turn % values, (2 * self._turn + 1) % values  # the sizes are even
        steps = {
            # A branch that follows its target might be rebased before the measured step.
            "branch": client.create_branch(WORKSPACE, name, target, follow="manual", timeout=TIMEOUT),
            "first edit": self._send(name, [Set(f"v/{ours}", -self._turn)]),
            "edit": self._send(target, [Set(f"v/{theirs}", -self._turn)]),
            "rebase": client.rebase(WORKSPACE, name, timeout=TIMEOUT),
            "apply": client.apply(WORKSPACE, name, allow_stale=True, timeout=TIMEOUT),
        }
        return {step: await self._measured(doing) for step, doing in steps.items()}

    async def _measured(self, doing: Awaitable[object]) -> dict[str, float]:
        used = {name: cpu_ms(pid) for name, pid in self._pids.items()}
        began = time.perf_counter()
        await doing
        took = 1000 * (time.perf_counter() - began)
        await anyio.sleep(PAUSE)
        return {"ms": took} | {f"cpu_{name}": cpu_ms(pid) - used[name] for name, pid in self._pids.items()}


@asynccontextmanager
async def installation(checkout: Path) -> AsyncIterator[Installation]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        nats = await stack.enter_async_context(embedded_nats(Path(folder)))
        client = await stack.enter_async_context(RebaserClient.connect(nats.url))
        server = await stack.enter_async_context(running(nats.url, "applies", checkout=checkout))
        pids = {"server": server.child.pid, "nats": nats.pid}
        yield Installation(client, pids)


async def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    checkouts = {"new": Path(__file__).parents[2]} | ({"old": options.old} if options.old else {})
    rounds: dict[str, list[dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        all_ = {}
        for values in options.values:
            for name, path in checkouts.items():
                all_[name, values] = one = await stack.enter_async_context(installation(path))
                await one.fill(values)
        for number in range(options.rounds + 1):  # the first round is not counted
            for (name, values), one in all_.items():
                found = await one.round(values)
                for step, figures in found.items() if number else ():
                    rounds.setdefault(f"{step} {values:,} {name}", []).append(figures)
    return {name: _summary(runs) for name, runs in sorted(rounds.items())}


def _summary(runs: list[dict[str, float]]) -> dict[str, float]:
    medians = {figure: round(statistics.median(one[figure] for one in runs), 2) for figure in runs[0]}
    return medians | {"least_ms": round(min(one["ms"] for one in runs), 2)}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--values", type=int, nargs="+", default=[1000, 1_000_000])
    out.add_argument("--rounds", type=int, default=20)
    out.add_argument("--old", type=Path)
    out.add_argument("--json", action="store_true")
    return out


def main() -> None:
    options = parser().parse_args()
    found = uvloop.run(measure(options))
    if options.json:
        print(json.dumps(found))
        return
    for step, figures in found.items():
        print(f"{step:26}" + "  ".join(f"{name} {value:g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
