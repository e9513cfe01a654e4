"""Runs fuzzing for any length of time.

python -m tests.fuzz readers --seconds 3600 --seed 1       damaged inputs for each reader, in turn
python -m tests.fuzz messages --count 1000000 --seed 1     damaged messages through a real server

A failing input is printed as hex, with its seed, and kept in tests/fuzz/corpus, which the suite runs.
"""

import argparse
import faulthandler
import math
import sys
import time

import anyio

from tests.fuzz.messages import fuzz_messages
from tests.fuzz.run import Found, Stats, keep, run
from tests.fuzz.targets import TARGETS

TURN = 10.0  # seconds for one target before the next


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    readers = commands.add_parser("readers", help="damaged inputs for each reader, in turn")
    readers.add_argument("--target", choices=["all", *TARGETS], default="all")
    readers.add_argument("--seconds", type=float, default=60.0)
    through = commands.add_parser("messages", help="damaged messages through a real server")
    through.add_argument("--count", type=int, default=10_000)
    through.add_argument("--seconds", type=float, default=math.inf, help="seconds after which nothing more is sent")
    for command in (readers, through):
        command.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args()
    faulthandler.enable()
    print(f"seed {options.seed}", flush=True)
    if options.command == "messages":
        print(anyio.run(fuzz_messages, options.count, options.seed, options.seconds))
        return 0
    return fuzz_targets(list(TARGETS) if options.target == "all" else [options.target], options.seconds, options.seed)


def fuzz_targets(names: list[str], seconds: float, seed: int) -> int:
    """Fuzz all of `names` in turns, each with a new seed. Return 1 if a defect was found."""
    began = time.monotonic()
    totals = {name: Stats() for name in names}
    used = dict.fromkeys(names, 0.0)
    turn = min(TURN, seconds / len(names))
    failures = 0
    while (left := began + seconds - time.monotonic()) > 0.01:
        for name in names:
            since = time.monotonic()
            try:
                stats = run(name, seed, seconds=min(turn, left))
                totals[name].executions += stats.executions
                totals[name].slowest = max(totals[name].slowest, stats.slowest)
            except Found as found:
                failures += 1
                print(f"FOUND with seed {seed}: {found}\nkept as {keep(found)}", file=sys.stderr, flush=True)
            used[name] += time.monotonic() - since
        seed += 1
    for name, stats in totals.items():
        speed = stats.executions / max(used[name], 0.001)
        print(f"{name:11} {stats.executions:>10} inputs  {speed:>8.0f}/s  slowest {stats.slowest * 1000:.1f} ms")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
