"""What a dependent values update takes: alone, end to end through a server, behind gates, and beside other engines.

    python -m tests.benchmarks.dvu [--sizes 1000,100000,1000000] [--shapes chain,dag] [--edits 1,100,10000,all,root]
        [--runs 5] [--cutoff] [--end-to-end] [--peers all] [--curves] [--report] [--lines FILE] [--minutes M] [--json]

    python -m tests.benchmarks.dvu --judged --lines artifacts/dvu.jsonl      everything but 10 million values

Shapes are those of `tests.benchmarks.evaluate`, loaded as a change set. Edits: a number of values, `all` that are set,
`root` the first one, `same` sets all to what they were (everything is computed, nothing comes out other than it was).
`--cutoff` measures them behind gates as well: `through` changes what follows, `cutoff` does not.

Medians in ms, all of one run: `plan` and `rest` (packets in, results in) are the owner's share, `spark` is what the
engine took; `ratio` is the whole over the empty job, one packet of two values. Aims: 1.3 for a thousand values, 1.8 for
100 thousand, 3 for a million. Building the change set is not timed here, nor is writing the commit. Every value is
checked against a recompute.

Each line is written to FILE as it is measured; what FILE has is not measured again, so a run that was stopped goes on
with the same command. `--report` prints all of FILE as Markdown.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop
from anyio import to_thread

from rebaser.dvu.engine import Engine, EngineSettings
from tests.benchmarks import machine
from tests.benchmarks.dvu import end_to_end, estimate, peers
from tests.benchmarks.dvu.curves import curves
from tests.benchmarks.dvu.lines import Line, Lines
from tests.benchmarks.dvu.loaded import EDITS, Loaded, measure
from tests.benchmarks.dvu.report import report
from tests.benchmarks.evaluate import SHAPES

JUDGED_EDITS = "1,100,10000,root,all"
STEP_LIMIT = 60.0  # seconds a peer may take for one step
JUDGED_STEP_LIMIT = 20.0


@asynccontextmanager
async def warm_engine(memory: str) -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        settings = EngineSettings(scratch=Path(folder), parallelism=2, driver_memory=memory)
        async with Engine("local[*]", settings) as engine:
            await engine.ready.wait()
            for _ in range(20):  # the JVM compiles what it runs often
                await Loaded("chain", 2).update(engine)
            yield engine


async def alone(lines: Lines, options: argparse.Namespace) -> None:
    cells = [
        (f"alone {shape} {size}{' gated' if gated else ''}", shape, size, gated)
        for size in options.sizes
        for gated in ((False, True) if options.cutoff else (False,))
        for shape in options.shapes
    ]
    others = curves(options.sizes, options.runs) if options.curves else {}
    if not any(map(lines.wants, [*(cell[0] for cell in cells), *others])):
        return

    async def cell(engine: Engine, shape: str, size: int, gated: bool) -> list[Line]:
        found = await measure(engine, shape, size, options.runs, edits=options.edits, gated=gated)
        return [{"part": "alone", "gated": gated} | one for one in found]

    async with warm_engine(options.driver_memory) as engine:
        for name, shape, size, gated in cells:
            await lines.measure(name, partial(cell, engine, shape, size, gated))
        for name, measured in others.items():
            await lines.measure(name, partial(measured, engine))


async def through_a_server(lines: Lines, options: argparse.Namespace) -> None:
    cells = [
        (f"end-to-end {shape} {size}{' gated' if gated else ''}", shape, size, gated)
        for size in options.sizes
        for gated in ((False, True) if options.cutoff else (False,))
        for shape in options.shapes
    ]
    if not any(lines.wants(cell[0]) for cell in cells):
        return
    async with end_to_end.system() as client:
        for name, shape, size, gated in cells:
            measured = partial(end_to_end.measure, client, shape, size, options.runs, edits=options.edits, gated=gated)
            await lines.measure(name, measured)


async def beside_others(lines: Lines, options: argparse.Namespace) -> None:
    """Smaller sizes first: what took too long there is not tried at a larger one."""
    for size in sorted(options.sizes):
        for peer in options.peers:
            for shape in options.shapes:
                name = f"peers {peer} {shape} {size}"
                if peer_failed_smaller(lines, peer, shape, size):
                    why = {"why": "not tried: failed at a smaller size"}
                    if lines.wants(name):
                        lines.add([{"cell": name, "part": "peers", "peer": peer, "shape": shape, "size": size} | why])
                    continue
                asked = partial(
                    *(peers.measure, peer, shape, size),
                    edits=options.edits,
                    runs=options.runs,
                    seconds=options.peer_seconds,
                )
                await lines.measure(name, partial(to_thread.run_sync, asked))


def peer_failed_smaller(lines: Lines, peer: str, shape: str, size: int) -> bool:
    return any(
        one["part"] == "peers" and one["peer"] == peer and one["shape"] == shape and one["size"] < size and "why" in one
        for one in lines.all
    )


async def run(lines: Lines, options: argparse.Namespace) -> None:
    await alone(lines, options)
    if options.end_to_end:
        await through_a_server(lines, options)
    if options.peers:
        await beside_others(lines, options)


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--edits", default=",".join(EDITS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cutoff", action="store_true", help="behind gates as well")
    parser.add_argument("--end-to-end", action="store_true", help="through a server and a client as well")
    parser.add_argument("--peers", default="", metavar="NAMES", help=f"all, or some of {','.join(peers.PEERS)}")
    parser.add_argument("--peer-seconds", type=float, default=STEP_LIMIT, help="a peer is stopped after this, a step")
    parser.add_argument("--curves", action="store_true", help="cost against the affected part, and against the size")
    parser.add_argument("--judged", action="store_true", help="all of that, with --report; peers have 20 s a step")
    parser.add_argument("--driver-memory", default="1g", help="of Spark")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="keep what is measured, and go on from there")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after this")
    parser.add_argument("--report", action="store_true", help="Markdown on stdout, at the end")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.judged:
        options.edits, options.peers, options.peer_seconds = JUDGED_EDITS, "all", JUDGED_STEP_LIMIT
        options.cutoff = options.end_to_end = options.curves = options.report = True
    options.sizes = [int(size) for size in options.sizes.split(",")]
    options.shapes = [shape.replace("-", "_") for shape in options.shapes.split(",")]
    options.edits = options.edits.split(",")
    options.peers = list(peers.PEERS) if options.peers == "all" else [one for one in options.peers.split(",") if one]
    for given, known in ((options.shapes, SHAPES), (options.peers, peers.PEERS)):
        if unknown := set(given) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
    return options


def main() -> None:
    options = arguments()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    to = sys.stderr if options.report else sys.stdout
    about = f"{machine.machine()}; " + ", ".join(f"{name} {value}" for name, value in machine.versions().items())
    started, quiet = time.monotonic(), machine.load()
    lines = Lines(options.lines, partial(show, as_json=options.json, to=to), started + 60 * options.minutes)
    if not options.json:
        print(about, f"about {estimate.minutes(options, lines):.0f} minutes", HEAD, sep="\n", flush=True, file=to)
    uvloop.run(run(lines, options))
    if lines.left_out:
        print(f"{lines.left_out} cells are left out: the same command with --lines goes on there", file=sys.stderr)
    if options.report:
        command = " ".join(sys.argv[1:])
        asked = f"`python -m tests.benchmarks.dvu {command}`, medians of {options.runs} runs after a first one;"
        print(report(lines.all, f"{about}\n\n{asked} load of the machine at the start {quiet:.1f}."))


if __name__ == "__main__":
    main()
