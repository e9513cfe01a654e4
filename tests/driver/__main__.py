"""Runs random edits beside updates: `python -m tests.driver --seed 7 --runs 100`.

Each run has a seed: clients edit change sets of 300 to 6,000 values while a real server updates them on a real Spark.
All values are compared with those of an evaluator that shares no code with Rebaser. The command prints totals and, for
each violation, the differences and the command that repeats the run.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio
import structlog

from rebaser.dvu.spark.engine import Engine, EngineSettings
from rebaser.embedded.nats import embedded_nats
from tests.driver.removals import Removals
from tests.driver.story import Story, run_seed

STORIES = {one.__name__.lower(): one for one in (Story, Removals)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.driver", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; default: taken from the clock")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--story", choices=list(STORIES), default="story")
    parser.add_argument("--go-on", action="store_true", help="continue after a violation")
    given = parser.parse_args()
    structlog.configure(cache_logger_on_first_use=False)
    seed = int(time.time()) % 10_000_000 if given.seed is None else given.seed
    return anyio.run(run, given.story, seed, given.runs, given.go_on, backend_options={"use_uvloop": True})


async def run(story: str, first: int, runs: int, go_on: bool) -> int:
    counts: Counter[str] = Counter()
    broken = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spark").mkdir()
        settings = EngineSettings(scratch=folder / "spark", parallelism=2)
        async with embedded_nats(folder / "nats") as nats, Engine("local[*]", settings) as engine:
            await engine.ready.wait()
            for seed in range(first, first + runs):
                began = time.monotonic()
                report = await run_seed(seed, nats.url, engine, STORIES[story])
                counts.update(report.counts)
                print(f"seed {seed}: {report.told}, {time.monotonic() - began:.1f} s", flush=True)
                if report.violation is not None:
                    broken += 1
                    print(report.violation)
                    print(f"again: python -m tests.driver --story {story} --seed {seed}", flush=True)
                    if not go_on:
                        break
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    print(f"{broken} of {runs} seeds found something" if broken else f"{runs} runs, no violation")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
