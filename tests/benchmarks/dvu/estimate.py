"""About how long a run will take, from what cells took on two quiet cores: nobody is held to it."""

import argparse

from tests.benchmarks.dvu.lines import Lines

LOAD = 12e-6  # seconds a value, to make a change set
STORE = 45e-6  # the same through a server
STEP = 0.06  # seconds an update of nothing takes
VALUE = 0.25e-6  # seconds for each value more
PEER = {  # seconds to start and warm up; seconds a value, all edits
    "bare": (3.0, 1e-6),
    "bare-sweep": (3.0, 1e-6),
    "pydict": (2.0, 12e-6),
    "dask": (3.0, 400e-6),
    "formualizer": (2.0, 100e-6),
    "hyperformula": (3.0, 60e-6),
    "pyspark-joins": (30.0, 100e-6),
}


def minutes(options: argparse.Namespace, lines: Lines) -> float:
    """Of what is not measured yet."""
    steps = len(options.edits) * (options.runs + 1)
    seconds = 0.0
    for size in options.sizes:
        update = STEP + VALUE * size
        for shape in options.shapes:
            for suffix, times in (("", 1), (" gated", 2)) if options.cutoff else (("", 1),):
                if lines.wants(f"alone {shape} {size}{suffix}"):
                    seconds += LOAD * size + times * steps * (STEP + update)
                if options.end_to_end and lines.wants(f"end-to-end {shape} {size}{suffix}"):
                    seconds += STORE * size + times * steps * (STEP + update)
            for peer in options.peers:
                start, value = PEER[peer]
                if lines.wants(f"peers {peer} {shape} {size}"):
                    seconds += start + min(value * size, options.peer_seconds)
        if options.curves:
            seconds += LOAD * size + options.runs * update
    return seconds / 60
