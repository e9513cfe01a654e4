"""Measures dependent values updates: alone, end to end through a server, with gates, and beside other engines.

    python -m tests.benchmarks.dvu [--sizes 1000,100000,1000000] [--shapes chain,dag] [--edits 1,100,10000,all,root]
        [--runs 5] [--cutoff [SIZE]] [--end-to-end [SIZE]] [--peers all [--peers-up-to SIZE]] [--curves] [--report]
        [--lines FILE] [--minutes M] [--json]

    python -m tests.benchmarks.dvu --judged --lines artifacts/dvu.jsonl          in about a quarter of an hour
    python -m tests.benchmarks.dvu --everything --lines artifacts/dvu.jsonl      continues from there

The shapes are those of `tests.benchmarks.evaluate`, loaded as a change set. An edit sets a number of values; `all` sets
all that are not derived, `root` the first one, and `same` sets all to their present values, so that everything is
computed and nothing changes. `--cutoff` also measures edits of graphs with gates: `through` changes the values behind
the gates, `cutoff` does not.

The figures are medians in ms, all from one run: `plan` and `rest` (packets in, results in) are the owner's share,
`spark` is the time of the engine, and `ratio` is the total divided by the time of an empty job, which is one packet of
two values. Aims: 1.3 for a thousand values, 1.8 for 100 thousand, 3 for a million. Building the change set and writing
the commit are not included. Every value is checked against a recompute.

Each line is written to FILE as soon as it is measured. Lines that FILE has are not measured again, so the same command
continues a run that was stopped. `--report` prints all of FILE as Markdown. `--judged` measures gates, a server and
some peers for up to 100 thousand values, and everything else also for a million.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop
from anyio import to_thread

from rebaser.dvu.spark.engine import Engine, EngineSettings
from tests.benchmarks import machine
from tests.benchmarks.dvu import end_to_end, peers
from tests.benchmarks.dvu.cells import Cell, cells, minutes
from tests.benchmarks.dvu.curves import curve
from tests.benchmarks.dvu.lines import Line, Lines
from tests.benchmarks.dvu.loaded import EDITS, Loaded, measure
from tests.benchmarks.dvu.report import report
from tests.benchmarks.evaluate import SHAPES

ALL_EDITS = "1,100,10000,root,all"
QUICK_PEERS = "bare-sweep,pydict,formualizer,hyperformula"


@asynccontextmanager
async def warm_engine(memory: str) -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        settings = EngineSettings(scratch=Path(folder), parallelism=2, driver_memory=memory)
        async with Engine("local[*]", settings) as engine:
            await engine.ready.wait()
            for _ in range(20):  # the JVM compiles code that runs often
                await Loaded("chain", 2).update(engine)
            yield engine


async def on_an_engine(wanted: list[Cell], lines: Lines, options: argparse.Namespace) -> None:
    async def alone(engine: Engine, cell: Cell) -> list[Line]:
        found = await measure(engine, cell.shape, cell.size, options.runs, edits=options.edits, gated=cell.gated)
        return [{"part": "alone", "gated": cell.gated} | one for one in found]

    async with warm_engine(options.driver_memory) as engine:
        for cell in wanted:
            if cell.part == "curves":
                await lines.measure(cell.name, partial(curve, engine, cell.shape, cell.size, options.runs))
            else:
                await lines.measure(cell.name, partial(alone, engine, cell))


async def through_a_server(wanted: list[Cell], lines: Lines, options: argparse.Namespace) -> None:
    async with end_to_end.system() as client:
        for cell in wanted:
            asked = partial(end_to_end.measure, client, cell.shape, cell.size, options.runs)
            await lines.measure(cell.name, partial(asked, edits=options.edits, gated=cell.gated))


async def beside_others(wanted: list[Cell], lines: Lines, options: argparse.Namespace) -> None:
    for cell in wanted:
        about = {"part": "peers", "peer": cell.peer, "shape": cell.shape}
        smaller = [one for one in lines.all if one.items() >= about.items() and one["size"] < cell.size]
        if lines.wants(cell.name) and any("why" in one for one in smaller):
            why = "not tried: did not get to its end at a smaller size"
            lines.add([{"cell": cell.name, **about, "size": cell.size, "why": why}])
        asked = partial(peers.measure, cell.peer, cell.shape, cell.size, seconds=options.peer_seconds)
        asked = partial(asked, edits=options.edits, runs=options.runs)
        await lines.measure(cell.name, partial(to_thread.run_sync, asked))


async def run(wanted: list[Cell], lines: Lines, options: argparse.Namespace) -> None:
    parts = ((("alone", "curves"), on_an_engine), (("end-to-end",), through_a_server), (("peers",), beside_others))
    for names, measured in parts:
        these = [cell for cell in wanted if cell.part in names and lines.wants(cell.name)]
        if these:
            await measured(these, lines, options)


HEAD = (
    "    size shape      edit           affected   changed   MB in     plan    spark     rest      all   empty  ratio"
)


def show(one: Line, *, as_json: bool, to: Any) -> None:
    if as_json:
        text = json.dumps(one)
    elif one["part"] == "alone":
        text = (
            f"{one['size']:8} {one['shape']:10} {one['edit']:13} {one['affected']:9.0f} {one['changed']:9.0f}"
            f" {one['mb']:7} {one['plan']:8} {one['spark']:8} {one['rest']:8} {one['all']:8} {one['empty']:7}"
            f" {one['ratio']:6}"
        )
    else:
        text = "  ".join(f"{name} {value}" for name, value in one.items() if name not in ("cell", "part"))
        text = f"{one['part']}: {text}"
    print(text, flush=True, file=to)


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--edits", default=",".join(EDITS))
    parser.add_argument("--runs", type=int)
    up_to = {"type": int, "nargs": "?", "const": sys.maxsize, "metavar": "SIZE"}
    parser.add_argument("--cutoff", **up_to, help="also measure with gates (for graphs up to SIZE)")  # type: ignore[arg-type]
    parser.add_argument("--end-to-end", **up_to, help="also measure through a server and a client (up to SIZE)")  # type: ignore[arg-type]
    parser.add_argument("--peers", metavar="NAMES", help=f"all, or some of {','.join(peers.PEERS)}")
    parser.add_argument("--peers-up-to", type=int, metavar="SIZE")
    parser.add_argument(
        "--peer-seconds", type=float, default=60.0, help="seconds after which a step of a peer is stopped"
    )
    parser.add_argument(
        "--curves", action="store_true", help="measure the cost against the affected part, and against the size"
    )
    parser.add_argument(
        "--judged", action="store_true", help="measure the most important tables, in a quarter of an hour"
    )
    parser.add_argument("--everything", action="store_true", help="measure all of the above, in more than an hour")
    parser.add_argument("--driver-memory", default="1g", help="memory of Spark")
    parser.add_argument(
        "--lines", type=Path, metavar="FILE", help="file in which results are kept, and from which a run continues"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="minutes after which nothing new is begun")
    parser.add_argument("--report", action="store_true", help="print Markdown at the end")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(given)
    if options.judged or options.everything:
        options.edits = ALL_EDITS
        options.curves = options.report = True
    everything = sys.maxsize if options.everything else 100_000 if options.judged else None
    for name in ("cutoff", "end_to_end"):
        if getattr(options, name) is None:
            setattr(options, name, everything)
    options.peers_up_to = options.peers_up_to or everything or sys.maxsize
    options.runs = options.runs or (3 if options.judged else 5)
    names = options.peers or ("all" if options.everything else QUICK_PEERS if options.judged else "")
    options.peers = list(peers.PEERS) if names == "all" else [one for one in names.split(",") if one]
    options.sizes = sorted(int(size) for size in options.sizes.split(","))
    options.shapes = [shape.replace("-", "_") for shape in options.shapes.split(",")]
    options.edits = options.edits.split(",")
    for given, known in ((options.shapes, SHAPES), (options.peers, peers.PEERS)):
        if unknown := set(given) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return options


def main() -> None:
    options = arguments(sys.argv[1:])
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    to = sys.stderr if options.report else sys.stdout
    about = f"{machine.machine()}; " + ", ".join(f"{name} {value}" for name, value in machine.versions().items())
    started, quiet = time.monotonic(), machine.load()
    lines = Lines(options.lines, partial(show, as_json=options.json, to=to), started + 60 * options.minutes)
    wanted = [cell for cell in cells(options) if cell.name not in lines]
    if not options.json:
        takes = f"{len(wanted)} cells, about {minutes(wanted, options):.0f} minutes on two quiet cores"
        print(about, takes, HEAD, sep="\n", flush=True, file=to)
    uvloop.run(run(wanted, lines, options))
    if left := sum(cell.name not in lines for cell in wanted):
        print(f"{left} cells are left: the same command, with --lines, goes on there", file=sys.stderr)
    if options.report:
        command = " ".join(sys.argv[1:])
        asked = f"`python -m tests.benchmarks.dvu {command}`, medians of {options.runs} runs after a first one;"
        print(report(lines.all, f"{about}\n\n{asked} load of the machine at the start {quiet:.1f}."))


if __name__ == "__main__":
    main()
