"""Runs chaos tests for any length of time.

python -m tests.chaos --seed 7 --minutes 60 [--nemesis kill,pause] [--cluster] [--keep DIR]

The seed decides the faults and the edits, but not their timing. The exit code is 1 if there was a violation.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import anyio

from rebaser.cli import logs
from tests.chaos.nemeses import kinds
from tests.chaos.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 1_000_000, help="seed of the run; default: taken from the clock"
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes of faults, without the time of the checks")
    parser.add_argument("--round", type=float, default=60.0, help="seconds of faults between two checks")
    parser.add_argument("--cluster", action="store_true", help="three nats-servers, and three copies of each stream")
    parser.add_argument("--nemesis", default="", help="kinds of faults, separated by commas; default: all")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for data and histories; default: a folder that is removed")
    given = parser.parse_args()
    names = tuple(name for name in given.nemesis.split(",") if name)
    unknown = set(names) - set(kinds(given.cluster))
    if unknown:
        parser.error(f"no such nemesis: {', '.join(unknown)}; there are {', '.join(kinds(given.cluster))}")
    options = Options(
        given.seed,
        given.minutes * 60,
        round_seconds=given.round,
        clustered=given.cluster,
        nemeses=names,
        servers=given.servers,
        clients=given.clients,
    )
    print(f"seed {options.seed}", flush=True)
    logs.configure("warning", "console")
    with tempfile.TemporaryDirectory(prefix="rebaser-chaos-") as temporary:
        report = anyio.run(run, options, given.keep or Path(temporary))
    print(report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
