"""What a dependent values update takes: plan, Spark, results; beside an empty one-packet job.

    python -m tests.benchmarks.dvu [--sizes 1000,100000,1000000] [--shapes chain,dag] [--edits 1,100,10000,all,root]
        [--cutoff] [--runs 5] [--json]

Shapes are those of `tests.benchmarks.evaluate`, loaded as a change set. Edits: a number of values, `all` that are set,
`root` the first one, `same` sets all to what they were (everything is computed, nothing comes out other than it was).
`--cutoff` measures them behind gates as well: `through` changes what follows, `cutoff` does not.

Medians in ms, all of one run: `plan` and `rest` (packets in, results in) are the owner's share, `spark` is what the
engine took; `ratio` is the whole over the empty job. Aims: 1.3 for a thousand values, 1.8 for 100 thousand, 3 for a
million. Building the change set is not timed here, nor is writing the commit.
"""

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pyspark

from rebaser.dvu.engine import Engine, EngineSettings
from tests.benchmarks.dvu.loaded import EDITS, Loaded, measure
from tests.benchmarks.evaluate import SHAPES


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Engine("local[*]", EngineSettings(scratch=Path(folder), parallelism=2)) as engine:
            await engine.ready.wait()
            for _ in range(20):  # the JVM compiles what it runs often
                await Loaded("chain", 2).update(engine)
            for size in map(int, options.sizes.split(",")):
                for shape in options.shapes.split(","):
                    for gated in (False, True) if options.cutoff else (False,):
                        edits = options.edits.split(",")
                        for one in await measure(engine, shape, size, options.runs, edits=edits, gated=gated):
                            print(json.dumps(one) if options.json else _line(one), flush=True)


def _line(one: dict[str, Any]) -> str:
    return (
        f"{one['size']:8} {one['shape']:10} {one['edit']:13} {one['affected']:9.0f} {one['changed']:9.0f} {one['mb']:7}"
        f" {one['plan']:8} {one['spark']:8} {one['rest']:8} {one['all']:8} {one['empty']:7} {one['ratio']:6}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--edits", default=",".join(EDITS))
    parser.add_argument("--cutoff", action="store_true")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(f"{platform.machine()}, Python {platform.python_version()}, PySpark {pyspark.__version__}")
        print(
            "    size shape      edit           affected   changed   MB in     plan    spark     rest      all   empty"
            "  ratio"
        )
    anyio.run(run, options)


if __name__ == "__main__":
    main()
