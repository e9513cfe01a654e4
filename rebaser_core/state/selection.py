"""Selects the values of a state that match a pattern, in pages, and optionally with their definitions."""

from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

from rebaser_core.state.patterns.globs import matcher
from rebaser_core.updates import Derive
from rebaser_core.values import Value

if TYPE_CHECKING:  # at run time, this import would load NumPy
    from rebaser_core.state.change_set import ChangeSetState


@dataclass(frozen=True, slots=True)
class Item:
    """A value with its id, and its definition if it is derived."""

    id: str
    value: Value
    definition: Derive | None = None


def select_ids(
    state: "ChangeSetState", match: str | None = None, *, after: str = "", limit: int | None = None
) -> list[str]:
    """Return the sorted ids in `state` that match the glob `match`; None matches every id.

    Only ids greater than `after` are returned, and at most `limit` of them.
    """
    ids = iter(state.cells)
    if match is not None:
        head, matches = match.partition("*")[0], matcher(match)
        ids = (id_ for id_ in ids if id_.startswith(head) and matches(id_))
    if after:
        ids = (id_ for id_ in ids if id_ > after)
    return sorted(ids) if limit is None else nsmallest(limit, ids)


def select_values(state: "ChangeSetState", match: str | None = None) -> dict[str, Value]:
    """Return a map, sorted by id, of the values in `state` whose ids match the glob `match`. If `match` is None, return
    all values, unsorted."""
    if match is None:
        return state.values()
    return {item.id: item.value for item in select_items(state, match)}


def select_items(
    state: "ChangeSetState", match: str | None = None, *, after: str = "", limit: int | None = None
) -> list[Item]:
    """Return the values whose ids `select_ids` returns for the same parameters, with their ids and definitions."""
    items: list[Item] = []
    stale = state.stale()
    for id_ in select_ids(state, match, after=after, limit=limit):
        value = state.value(id_, stale)
        if value is not None:
            items.append(Item(id_, value, state.cells[id_].definition))
    return items
