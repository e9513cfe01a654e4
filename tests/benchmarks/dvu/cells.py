"""The cells that a run measures, in order, with estimates of their durations."""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

LOAD = 12e-6  # seconds per value to make a change set, on two idle cores, like all estimates here
STORE = 45e-6  # the same through a server
STEP = 0.06  # seconds of an update of nothing
VALUE = 0.25e-6  # seconds for each further value
START = {"alone": 10.0, "curves": 0.0, "end-to-end": 15.0, "peers": 0.0}
PEER = {  # seconds to start and warm up; seconds per value for all edits
    "bare": (3.0, 1e-6),
    "bare-sweep": (3.0, 1e-6),
    "pydict": (2.0, 12e-6),
    "dask": (3.0, 400e-6),
    "formualizer": (2.0, 100e-6),
    "hyperformula": (3.0, 60e-6),
    "pyspark-joins": (30.0, 100e-6),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One graph in one part of the benchmark, with all its edits."""

    part: str
    shape: str
    size: int
    gated: bool = False
    peer: str = ""

    @property
    def name(self) -> str:
        words = [self.part, self.peer, self.shape, str(self.size), "gated" if self.gated else ""]
        return " ".join(word for word in words if word)


def cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells: smaller graphs first, because what fails there need not be tried with larger ones, and the most
    important parts first."""
    found = [Cell("alone", shape, size) for size in options.sizes for shape in options.shapes]
    if options.curves:
        found += [Cell("curves", "affected", max(options.sizes))]
        found += [Cell("curves", "size", size) for size in options.sizes]
    if options.cutoff is not None:
        sizes = [size for size in options.sizes if size <= options.cutoff]
        found += [Cell("alone", shape, size, gated=True) for size in sizes for shape in options.shapes]
    if options.end_to_end is not None:
        for gated in (False, True) if options.cutoff is not None else (False,):
            most = min(options.end_to_end, options.cutoff) if gated else options.end_to_end
            sizes = [size for size in options.sizes if size <= most]
            found += [Cell("end-to-end", shape, size, gated) for size in sizes for shape in options.shapes]
    for size in options.sizes:
        if size <= options.peers_up_to:
            found += [Cell("peers", shape, size, peer=peer) for peer in options.peers for shape in options.shapes]
    return found


def minutes(wanted: Iterable[Cell], options: argparse.Namespace) -> float:
    """Return an estimate of how many minutes the cells take."""
    wanted = list(wanted)
    steps = len(options.edits) * (options.runs + 1)
    seconds = sum(START[part] for part in {cell.part for cell in wanted})
    for cell in wanted:
        update = 2 * STEP + VALUE * cell.size  # an empty job is measured with each update
        if cell.part == "peers":
            start, value = PEER[cell.peer]
            seconds += start + min(value * cell.size, options.peer_seconds)
        elif cell.part == "curves":
            seconds += LOAD * cell.size + (options.runs + 1) * update
        else:
            each = STORE if cell.part == "end-to-end" else LOAD
            seconds += each * cell.size + (2 if cell.gated else 1) * steps * update
    return seconds / 60
