"""`/change-sets/…/neighbours`: all inputs of a value, or all values that use it, in pages."""

from array import array
from collections.abc import Sequence
from functools import partial

from rebaser.console.api.values import (
    MAX_ID,
    PATTERN_ROW,
    base_path,
    no_value,
    places_bytes,
    search_ids,
    value_row,
)
from rebaser.console.reading.states import BrowsedState, PickedIds, sorted_ids
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser_core.explain.values import matching
from rebaser_core.updates import Derive, Match


async def read(console: Console, given: Given) -> Answer:
    """Return a page of the inputs of a value, or of the values that use it; with words, only those whose ids match."""
    id_, side = given.text("id", most=MAX_ID), given.choice("side", ("inputs", "dependents"))
    words, (offset, limit) = given.text("q", most=MAX_ID), given.page()
    loaded = await console.states.get(await console.client(), given.key)
    if id_ not in loaded.state.cells:
        raise no_value(given, loaded, id_)

    async def sort() -> "array[int]":
        return await loaded.read(lambda state: state.places(sorted_ids(state.state.cells.dependents(id_))))

    found: Sequence[tuple[str, str | Match]] | Sequence[str]
    if side == "inputs":
        found = await loaded.read(partial(_sources, id_=id_, words=words))
    else:
        users = PickedIds(loaded.ids, await console.kept.get(("users", loaded.number, id_), sort, places_bytes))
        found = await loaded.read(lambda _: search_ids(users, words)) if words else users
    page = found[offset : offset + limit]
    rows = await loaded.read(lambda state: [_neighbour(state, one) for one in page])
    return {
        "position": loaded.state.last,
        "id": id_,
        "side": side,
        "matching": len(found),
        "offset": offset,
        "limit": limit,
        "rows": rows,
    }


def _sources(loaded: BrowsedState, *, id_: str, words: str) -> list[tuple[str, str | Match]]:
    """Return the inputs of a value that match, in the order of its definition, each with its name."""
    definition = loaded.state.cells.edit_of(id_)
    if not isinstance(definition, Derive):
        return []
    found = [
        (name, one)
        for name, given in definition.inputs.items()
        for one in ((given,) if isinstance(given, (str, Match)) else given)
    ]
    named = set(search_ids([_text(one) for _, one in found], words)) if words else None
    return [(name, one) for name, one in found if named is None or _text(one) in named]


def _text(source: str | Match) -> str:
    return source.glob if isinstance(source, Match) else source


def _neighbour(loaded: BrowsedState, one: str | tuple[str, str | Match]) -> Answer:
    if isinstance(one, str):
        return value_row(loaded, one)
    name, source = one
    if isinstance(source, str):
        return {"name": name, "matches": None, **value_row(loaded, source)}
    matches = len(matching(loaded.state, source))
    return {"name": name, "matches": matches, **PATTERN_ROW, "id": source.glob}


RESOURCES = (Resource(base_path("/neighbours"), read),)
