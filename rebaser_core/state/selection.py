"""The part of a state that a reader asks for: by pattern, a page at a time, with definitions."""

from dataclasses import dataclass
from heapq import nsmallest

from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.patterns.globs import matcher
from rebaser_core.updates import Derive
from rebaser_core.values import Value


@dataclass(frozen=True, slots=True)
class Item:
    """A value with its id, and its definition where it is derived."""

    id: str
    value: Value
    definition: Derive | None = None


def select_ids(
    state: ChangeSetState, match: str | None = None, *, after: str = "", limit: int | None = None
) -> list[str]:
    """Ids of `state` that `match` matches (None: all), in order: those behind `after`, and at most `limit`."""
    ids = iter(state.cells)
    if match is not None:
        head, matches = match.partition("*")[0], matcher(match)
        ids = (id_ for id_ in ids if id_.startswith(head) and matches(id_))
    if after:
        ids = (id_ for id_ in ids if id_ > after)
    return sorted(ids) if limit is None else nsmallest(limit, ids)


def select_values(state: ChangeSetState, match: str | None = None) -> dict[str, Value]:
    """Values of `state` by id, in the order of their ids if `match` is given."""
    if match is None:
        return state.values()
    return {item.id: item.value for item in select_items(state, match)}


def select_items(
    state: ChangeSetState, match: str | None = None, *, after: str = "", limit: int | None = None
) -> list[Item]:
    """As `select_ids`, with values and definitions."""
    found: list[Item] = []
    stale = state.stale()
    for id_ in select_ids(state, match, after=after, limit=limit):
        value = state.value(id_, stale)
        if value is not None:
            found.append(Item(id_, value, state.cells[id_].definition))
    return found
