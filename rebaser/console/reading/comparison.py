"""Compares two loaded change sets: which values differ in their definition or in their result.

Invariants: a comparison is made in steps of `STEP` ids, so that other pages can read the same change sets meanwhile. It
tells how many bytes it takes, so that `Kept` can bound all of them together.
"""

import sys
from bisect import bisect_left
from functools import partial
from typing import Literal

from rebaser.console.reading.states import BrowsedState
from rebaser_core.branches.merge import same_definition
from rebaser_core.values import Value, canonical

STEP = 5_000  # ids
ROW_BYTES = 10  # of a value that differs, beside its id
Kind = Literal["edited", "derived", "removed", "added"]
KINDS: tuple[Kind, ...] = ("edited", "derived", "removed", "added")


class Comparison:
    """The ids of the values that differ, in order, and how. A value that only the first change set has is `removed`,
    one that only the second has is `added`; if the definition is the same, it is `derived`."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.kinds = bytearray()  # places in `KINDS`
        self.counts = dict.fromkeys(KINDS, 0)
        self.memory = 1000  # bytes, with the ids, which it may keep longer than their states are kept

    def add(self, id_: str, kind: Kind) -> None:
        self.ids.append(id_)
        self.kinds.append(KINDS.index(kind))
        self.counts[kind] += 1
        self.memory += ROW_BYTES + sys.getsizeof(id_)


async def compare(one: BrowsedState, two: BrowsedState) -> Comparison:
    """Return what differs between two states."""
    found = Comparison()
    last: str | None = ""
    while last is not None:
        last = await one.read_with(two, partial(_step, found=found, after=last))
    return found


def _step(one: BrowsedState, two: BrowsedState, *, found: Comparison, after: str) -> str | None:
    """Compare the next ids after `after`, and add the differences to `found`. Return the last id that was compared, or
    None if no ids remain."""
    ids = [_next(state.ids, after) for state in (one, two)]
    end = min((part[-1] for part in ids if len(part) == STEP), default=None)
    for id_ in sorted({id_ for part in ids for id_ in part if end is None or id_ <= end}):
        kind = _difference(one, two, id_)
        if kind is not None:
            found.add(id_, kind)
    return end


def _next(ids: list[str], after: str) -> list[str]:
    start = bisect_left(ids, after)
    start += start < len(ids) and ids[start] == after
    return ids[start : start + STEP]


def _difference(one: BrowsedState, two: BrowsedState, id_: str) -> Kind | None:
    before, after = one.state.value(id_, one.stale_set), two.state.value(id_, two.stale_set)
    if before is None or after is None:
        return "added" if before is None else "removed"
    if not same_definition(one.state.cells.edit_of(id_), two.state.cells.edit_of(id_)):
        return "edited"
    return None if _shown(before) == _shown(after) else "derived"


def _shown(value: Value) -> object:
    return value.state, value.error, canonical(value.value)
