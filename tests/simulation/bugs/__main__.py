"""Plants each bug and lets the simulation find it: `PYTHONHASHSEED=0 python -m tests.simulation.bugs`."""

import argparse
import sys
import time

from tests.simulation.bugs import BUGS
from tests.simulation.bugs.finding import find


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.bugs", description=__doc__)
    parser.add_argument("--part", default="1/1", help="part of the bugs: 2/3 is the second third")
    parser.add_argument("--only", default="", help="only bugs whose names contain this text")
    parser.add_argument("--first", action="store_true", help="try only the recorded seed of each bug")
    given = parser.parse_args()
    missed = 0
    part, parts = (int(number) for number in given.part.split("/"))
    for one in BUGS[part - 1 :: parts]:
        if given.only in one.name:
            began = time.process_time()
            seed, text = find(one, [one.seed] if given.first else None)
            took = time.process_time() - began
            missed += not seed
            told = f"seed {seed}: {text[:150]}" if seed else "NOT FOUND"
            print(f"{one.name} ({one.mode}, {took:.1f} s): {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
