"""Loaded change sets, as pages of values read them.

Invariants: a state in the cache is never changed, only replaced by a newer one. Loading takes at most a fifth of the
time: while a large change set changes all the time, pages show a state that is a little older. All cached states
together take at most `MAX_MEMORY`, except for the newest one. At most `MAX_LOADS` states are loaded at a time.
"""

import time
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import TypeVar, overload
from weakref import WeakValueDictionary

import anyio
from anyio import CapacityLimiter, to_thread

from rebaser_client import RebaserClient
from rebaser_client.load_progress import LOADING, LoadProgress
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState

MAX_MEMORY = 1 << 30  # bytes of all cached states, as the states estimate them
MAX_LOADS = 2
ID_BYTES = 16  # bytes that each sorted id takes in addition to its state
RELOAD_FACTOR = 4  # a change set is not loaded again for this many times the duration of the last load
SORTED_AT_ONCE = 50_000  # ids; sorting more in one call would block the event loop
MAX_FUNCTIONS = 50  # of a change set, those that derive the most values
IDS_PER_TEXT = 200  # ids that are neighbours in the order of ids, and are searched as one text
LAST_CHARACTER = "\U0010ffff"  # has no successor; no id contains it, because it is not printable
LOOKUP_FACTOR = 10  # some of the ids are looked up one by one if all ids are at least this many times as many
T = TypeVar("T")
_numbers = count()


class PickedIds(Sequence[str]):
    """Some of the sorted `ids` of a state: those at `places`, which are in order. Whoever keeps only the places does
    not hold the ids in memory when the state is no longer needed."""

    def __init__(self, ids: Sequence[str], places: "array[int]") -> None:
        self._ids = ids
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> "PickedIds": ...

    def __getitem__(self, at: int | slice) -> "str | PickedIds":
        if isinstance(at, slice):
            return PickedIds(self._ids, self._places[at])
        return self._ids[self._places[at]]

    def __iter__(self) -> Iterator[str]:
        return map(self._ids.__getitem__, self._places)


class BrowsedState:
    """A state with its ids in order, those in error and those that are stale among them, and the functions that derive
    the most values, each with the number of these values. No other loaded state has the same `number`."""

    def __init__(self, state: ChangeSetState) -> None:
        self.number = next(_numbers)
        self.state = state
        self.stale_set = state.stale()
        self.ids = sorted_ids(state.cells)
        self.stale = sorted_ids(self.stale_set)
        # `stale` has moved all values into the columns.
        functions = state.cells.columns.functions().items()
        self.functions = sorted(functions, key=lambda one: (-one[1], one[0]))[:MAX_FUNCTIONS]
        self.errors = sorted_ids(id_ for id_, _ in state.cells.faults() if id_ not in self.stale_set)
        self._chunks: list[str] | None = None
        self.reading = CapacityLimiter(1)  # parts of a state are made on first use

    @property
    def memory(self) -> int:
        return self.state.memory + len(self.ids) * ID_BYTES + sum(map(len, self._chunks or ()))

    def candidates(self, parts: Sequence[str]) -> list[str]:
        """Return the ids of all groups of neighbours in which each of `parts`, in lower case, occurs. These are all ids
        that contain the parts, and usually few others: a search in a long text takes a fraction of one in many ids."""
        if self._chunks is None:
            self._chunks = [
                "\n".join(self.ids[at : at + IDS_PER_TEXT]).lower() for at in range(0, len(self.ids), IDS_PER_TEXT)
            ]
        found: list[str] = []
        for number, chunk in enumerate(self._chunks):
            if all(part in chunk for part in parts):
                found += self.ids[number * IDS_PER_TEXT : (number + 1) * IDS_PER_TEXT]
        return found

    def places(self, some: Sequence[str]) -> "array[int]":
        """Return the places in `ids` of some of them, which are in order, too. Another id would get a wrong place, or
        end the list early; it raises `AssertionError`."""
        found = array("I")
        if len(some) * LOOKUP_FACTOR > len(self.ids):
            rest = iter(some)
            wanted = next(rest, None)
            for place, id_ in enumerate(self.ids):
                if id_ == wanted:
                    found.append(place)
                    wanted = next(rest, None)
            assert wanted is None, wanted  # noqa: S101 - see above
            return found
        place = 0
        for id_ in some:
            place = bisect_left(self.ids, id_, place)
            assert self.ids[place : place + 1] == [id_], id_  # noqa: S101 - see above
            found.append(place)
        return found

    async def read(self, reader: Callable[["BrowsedState"], T]) -> T:
        """Return what `reader` finds. It runs in a thread, one at a time."""
        return await to_thread.run_sync(reader, self, limiter=self.reading)

    async def read_with(self, other: "BrowsedState", reader: Callable[["BrowsedState", "BrowsedState"], T]) -> T:
        """Return what `reader` finds in this state and another one."""
        first, second = sorted((self, other), key=id)  # in the same order everywhere, so that nobody waits for ever
        async with first.reading:
            return await to_thread.run_sync(reader, self, other, limiter=second.reading)


def import_reader() -> None:
    """Import what reads checkpoints. This takes some tenths of a second, in which the event loop would not run."""
    import rebaser_core.checkpoint.reader  # noqa: F401, PLC0415


class StateCache:
    """The states that were read last."""

    def __init__(self) -> None:
        self._states: OrderedDict[ChangeSetKey, tuple[BrowsedState, float]] = OrderedDict()
        self._loads = CapacityLimiter(MAX_LOADS)
        self._running: dict[ChangeSetKey, tuple[LoadProgress, float]] = {}  # since when (monotonic)
        self._locks: WeakValueDictionary[ChangeSetKey, anyio.Lock] = WeakValueDictionary()

    async def get(self, client: RebaserClient, key: ChangeSetKey) -> BrowsedState:
        """Return the state of `key`. Raises `UnprocessableError` (`no_such_change_set`) if it has no commits."""
        info = await client.branch(key.workspace, key.change_set)  # in an outage, all viewers wait for this at once
        if info is None:
            raise UnprocessableError(f"{key.workspace}/{key.change_set} has no commit yet", code="no_such_change_set")
        lock = self._locks.setdefault(key, anyio.Lock())
        async with lock:
            found, until = self._states.get(key, (None, 0.0))
            if found is None or (found.state.last != info.sequence and time.monotonic() >= until):
                async with self._loads:
                    began = time.monotonic()
                    found = await self._load(client, key, began)
                    ended = time.monotonic()
                self._states[key] = found, ended + RELOAD_FACTOR * (ended - began)
            self._states.move_to_end(key)
            self._make_room()
            return found

    async def _load(self, client: RebaserClient, key: ChangeSetKey, began: float) -> BrowsedState:
        progress = LoadProgress()
        self._running[key] = progress, began
        told = LOADING.set(progress)
        try:
            await to_thread.run_sync(import_reader)
            state = await client.state(key.workspace, key.change_set)
            progress.begin("sort")
            return await to_thread.run_sync(BrowsedState, state)
        finally:
            LOADING.reset(told)
            del self._running[key]

    def loading(self, key: ChangeSetKey) -> tuple[LoadProgress, float] | None:
        """Return how far the loading of `key` is, and the seconds since it began; None if it is not loaded now."""
        found = self._running.get(key)
        return None if found is None else (found[0], time.monotonic() - found[1])

    def _make_room(self) -> None:
        while len(self._states) > 1 and sum(found.memory for found, _ in self._states.values()) > MAX_MEMORY:
            self._states.popitem(last=False)


def sorted_ids(ids: Iterable[str]) -> list[str]:
    """Return ids in order. Other threads get their turn meanwhile.

    This sorts slices, takes ids at regular places in them as bounds, and then sorts what is between two bounds in all
    slices, which is at most about twice as long as a slice. It only has to be merged, as it is in order in each slice.
    """
    found = list(ids)
    if len(found) <= SORTED_AT_ONCE:
        return sorted(found)
    slices = [sorted(found[at : at + SORTED_AT_ONCE]) for at in range(0, len(found), SORTED_AT_ONCE)]
    step = max(SORTED_AT_ONCE // len(slices), 1)
    bounds = sorted(id_ for some in slices for id_ in some[::step])[:: len(slices)][1:]
    found, starts = [], [0] * len(slices)
    for bound in bounds:
        ends = [bisect_left(some, bound) for some in slices]
        found += _merged(slices, starts, ends)
        starts = ends
    return found + _merged(slices, starts, [len(some) for some in slices])


def _merged(slices: list[list[str]], starts: list[int], ends: list[int]) -> list[str]:
    between = zip(slices, starts, ends, strict=True)
    return sorted(chain.from_iterable(some[start:end] for some, start, end in between))


def span(ids: Sequence[str], prefix: str) -> tuple[int, int]:
    """Return where in the sorted `ids` those with the prefix begin and end."""
    if not prefix:
        return 0, len(ids)
    return bisect_left(ids, prefix), bisect_left(ids, behind(prefix))


def start_after(ids: Sequence[str], after: str, low: int) -> int:
    """Return where a page begins; `after` is the last entry of the page before: an id, or a group of ids."""
    if not after:
        return low
    place = bisect_left(ids, behind(after)) if after.endswith("/") else bisect_right(ids, after)
    return max(low, place)


def behind(prefix: str) -> str:
    """Return the smallest text that is greater than all texts with this prefix."""
    if prefix[-1] == LAST_CHARACTER:
        return prefix
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
