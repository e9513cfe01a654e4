"""Simulated installations by hand: `PYTHONHASHSEED=0 python -m tests.simulation --seed 7 --runs 1000`.

Each run is one seed: real servers and clients over a model of JetStream, in virtual time, under faults. Prints what was
done, and for the first violation its trace and seed. A seed repeats exactly only under the same PYTHONHASHSEED.
"""

import argparse
import logging
import sys

import structlog

from tests.simulation.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=1)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    requests = commits = 0
    for seed in range(given.seed, given.seed + given.runs):
        result = simulate(seed)
        requests += result.requests
        commits += result.commits
        if result.violation is not None:
            print(result.report())
            return 1
    print(f"{given.runs} runs, {requests:,} requests, {commits:,} commits, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
