"""Simulated installations by hand: `PYTHONHASHSEED=0 python -m tests.simulation --seed 7 --runs 1000`.

Each run is one seed: real servers and clients over a model of JetStream, in virtual time, under faults. Prints what was
done, and for the first violation its trace and seed. A seed repeats exactly only under the same PYTHONHASHSEED.
"""

import argparse
import sys

from tests.simulation.bugs import BUGS, plant
from tests.simulation.setup import Mode
from tests.simulation.story import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], help="if not the one that the seed has")
    parser.add_argument(
        "--bug", choices=[bug.name for bug in BUGS], help="plant this one, see tests/simulation/bugs.py"
    )
    parser.add_argument("--digest", action="store_true", help="a line with the hash of its trace for each run")
    given = parser.parse_args()
    mode = Mode(given.mode) if given.mode else None
    if given.bug is not None:
        bug = next(bug for bug in BUGS if bug.name == given.bug)
        result = plant(bug, given.seed)
        print(result.report())
        return 1 if result.violation is not None else 0
    requests = commits = faults = 0
    for seed in range(given.seed, given.seed + given.runs):
        result = simulate(seed, mode)
        requests += result.requests
        commits += result.commits
        faults += sum(result.counts.values())
        if given.digest:
            print(seed, result.trace.digest())
        if result.violation is not None:
            print(result.report())
            return 1
    print(f"{given.runs} runs, {requests:,} requests, {commits:,} commits, {faults:,} faults, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
