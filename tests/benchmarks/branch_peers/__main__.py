"""Compares the costs of branches with git, doltlite and icechunk, on the same generated graphs.

    python -m tests.benchmarks.branch_peers [--values 1000 100000] [--edits 1 100] [--runs 5] [--sides rebaser git]
                                            [--collect] [--whole] [--json]

For each size of the graph, each side runs in a process of its own, one after the other. The steps are: create a branch,
edit it and its target, read the difference, merge (for Rebaser: rebase and apply), find and list conflicts, take a
merge back, read a value as of a position, blame it, list the commits that defined it, count the bytes of 100 branches
with one edit each, and collect garbage. Rebaser collects garbage only with `--collect`, because the figure then
includes the start of Spark. Branch and target are both edited, `edits` values each. Some lines have no conflicts; in
the others, 1 % of the edits (at least one) are of the same values. `--whole` measures 1,000, 100,000 and a million
values with 1, 100 and 10,000 edits, which takes half an hour and some GB on disk.

A ratio is Rebaser's figure divided by that of the side: 2 means that Rebaser takes twice as long. Each side has its
default durability. Rebaser runs as three processes, and no value is derived; doltlite and icechunk are called in the
measuring process; git runs a process for each command. `uv sync --group peers` installs doltlite and icechunk.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from tests.benchmarks.branch_peers import SIDES, missing
from tests.benchmarks.branch_peers.measure import Line, measure
from tests.benchmarks.machine import load, machine

WHOLE = ([1000, 100_000, 1_000_000], [1, 100, 10_000])
SECONDS = 1800.0  # limit for one side and size


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--edits", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--collect", action="store_true", help="also collect garbage with Rebaser, which starts Spark")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the side that this process measures
    options = parser.parse_args(given)
    if options.whole:
        options.values, options.edits = WHOLE
        options.collect = True
    return options


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """Measure each side in a process of its own. The line of a side that is missing or fails has the reason as
    `why`."""
    for values in options.values:
        for side in options.sides:
            about = {"side": side, "values": values}
            why = missing(side)
            if why is not None:
                yield about | {"why": why}
                continue
            given = ["--values", str(values), "--edits", *map(str, options.edits), "--runs", str(options.runs)]
            command = [sys.executable, "-m", "tests.benchmarks.branch_peers", "--one", side, *given]
            command += ["--collect"] * options.collect
            yield from _told(command, about)


def _told(command: list[str], about: Line) -> Iterator[Line]:
    """Yield the lines of a process. The last line has the reason as `why` if the process failed or took too long."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0) as child,
    ):
        timer = threading.Timer(SECONDS, os.killpg, (child.pid, signal.SIGKILL))
        timer.start()
        try:
            assert child.stdout is not None
            yield from (json.loads(line) for line in child.stdout if line.startswith("{"))
            code = child.wait()
        finally:
            late = not timer.is_alive()
            timer.cancel()
            with suppress(ProcessLookupError):  # kills its children, too: it has a process group of its own
                os.killpg(child.pid, signal.SIGKILL)
        errors.seek(0)
        if late:
            yield about | {"why": f"> {SECONDS:g} s"}
        elif code:
            yield about | {"why": "failed: " + " ".join(errors.read().split()[-30:])[:300]}


async def one(options: argparse.Namespace) -> None:
    """Measure one side in this process, and print its lines."""
    with tempfile.TemporaryDirectory(prefix="rebaser-peers") as folder:
        async for line in measure(
            options.one, Path(folder), options.values[0], options.edits, options.runs, collect=options.collect
        ):
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


def table(found: Iterable[Line], sides: Sequence[str]) -> Iterator[str]:
    """Yield a table row for each figure: Rebaser's, and that of each other side with the ratio."""
    cells: dict[tuple[int, int, int, str], dict[str, float]] = defaultdict(dict)
    for line in found:
        if "why" in line:
            yield f"{line['side']}, {line['values']:,} values: {line['why']}"
            continue
        key = (line["values"], line.get("edits", 0), line.get("shared", 0), line["what"])
        cells[key][line["side"]] = line["ms"] if "ms" in line else line["bytes"]
    others = [side for side in sides if side != "rebaser"]
    yield " ".join(
        [f"{'values':>9} {'edits':>6} {'shared':>6} {'':14} {'rebaser':>10}", *(f"{one:>18}" for one in others)]
    )
    for (values, edits, shared, what), row in cells.items():
        ours = row.get("rebaser")
        told = [f"{values:9,} {edits or '':>6} {shared if edits else '':>6} {what:14} {_figure(ours):>10}"]
        yield " ".join([*told, *(f"{_beside(ours, row.get(side)):>18}" for side in others)])


def _figure(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


def _beside(ours: float | None, theirs: float | None) -> str:
    if not theirs or ours is None:
        return _figure(theirs)
    return f"{_figure(theirs)} ({ours / theirs:.2g}x)"


def main() -> None:
    options = arguments()
    if options.one:
        uvloop.run(one(options))
        return
    os.environ.setdefault("REBASER_LOG_LEVEL", "error")
    found: list[dict[str, Any]] = []
    for line in lines(options):
        found.append(line)
        if options.json:
            print(json.dumps(line), flush=True)
    if not options.json:
        print(f"{machine()}; load {load():.1f}; ms, or bytes")
        print("\n".join(table(found, options.sides)))


if __name__ == "__main__":
    main()
