"""Runs simulated installations: `python -m tests.simulation --seed 7 --runs 1000`.

Each run has a seed: real servers and clients run against a model of JetStream, in virtual time, with faults. The
command prints totals and, for the first violation (or each one), its trace and seed. `--fresh` takes seeds that were
never run before. A seed repeats exactly only with the same PYTHONHASHSEED, which is 0 here.
"""

import argparse
import os
import secrets
import sys
from collections import Counter

from tests.simulation.bugs import BUGS
from tests.simulation.bugs.finding import plant
from tests.simulation.runs import Run, run_all
from tests.simulation.setup import Mode
from tests.simulation.ways import ELSEWHERE, WAYS

FRESH = 10**12  # fresh seeds are below this number


def tell_ways(done: list[Run]) -> list[str]:
    """Print how often each way was taken, and return the ways that never were."""
    taken = sum((one.ways for one in done), Counter())
    for way in WAYS:
        print(f"{taken[way.name]:>10,}  {way.name}")
    for way, test in ELSEWHERE.items():  # type: ignore[assignment]
        print(f"{'-':>10}  {way}: {test}")
    never = [way.name for way in WAYS if not taken[way.name]]
    if never:
        print(f"never taken: {', '.join(never)}")
    return never


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    first = parser.add_mutually_exclusive_group()
    first.add_argument("--seed", type=int, default=1, help="the first seed")
    first.add_argument("--fresh", action="store_true", help="draw the first seed, and print it")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument(
        "--keep-going", action="store_true", help="continue after a violation, and list all violations at the end"
    )
    parser.add_argument(
        "--mode", choices=[mode.value for mode in Mode], help="mode of the run; default: the mode that the seed draws"
    )
    parser.add_argument("--bug", choices=[bug.name for bug in BUGS], help="plant this bug; see tests/simulation/bugs")
    parser.add_argument("--digest", action="store_true", help="print the hash of the trace of each run")
    parser.add_argument(
        "--ways", action="store_true", help="count how often each way is taken, and fail if one never is"
    )
    given = parser.parse_args()
    if given.bug is not None:
        bug = next(bug for bug in BUGS if bug.name == given.bug)
        result = plant(bug, given.seed)
        print(result.report())
        return 1 if result.violation is not None else 0
    seed = secrets.randbelow(FRESH) if given.fresh else given.seed
    if given.fresh:
        print(f"seeds {seed} to {seed + given.runs - 1}", flush=True)
    done: list[Run] = []
    mode = Mode(given.mode) if given.mode else None
    for one in run_all(range(seed, seed + given.runs), mode, given.jobs, count=given.ways):
        done.append(one)
        if given.digest:
            print(one.seed, one.digest)
        if one.report:
            print(one.report, flush=True)
            if not given.keep_going:
                return 1
    never = tell_ways(done) if given.ways else []
    requests, commits, faults = (sum(getattr(one, name) for one in done) for name in ("requests", "commits", "faults"))
    violating = [one.seed for one in done if one.report]
    told = f"violated by seeds {violating}" if violating else "no violation"
    print(
        f"{given.runs} runs from seed {seed} on, {requests:,} requests, {commits:,} commits, {faults:,} faults, {told}"
    )
    return 1 if violating or never else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {"PYTHONHASHSEED": "0"})
    sys.exit(main())
