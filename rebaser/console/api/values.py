"""`/change-sets/…/values`: a level of the tree of ids, or a list of those that match. `/value`: one value. `/blame`:
who defined it, and who made it stale."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rebaser.console.access.hiding import told_start
from rebaser.console.reading.states import BrowsedState, PickedIds, span, start_after
from rebaser.console.resources import MOST, PAGE, Answer, Console, Given, NoSuchValueError, Resource
from rebaser.console.shapes import (
    blame_object,
    cause_object,
    cut,
    definition_object,
    definition_text,
    fault_object,
    full_text,
    short_text,
)
from rebaser_core.explain.values import ValueExplanation, explain_value
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.state.patterns.globs import matcher
from rebaser_core.values import State

STATES = ("all", "error", "stale", "derived", "set", "unset")
KINDS = ("any", "derived", "set", "unset")  # what the console finds by looking at each value
MAX_ID = 2 * DEFAULT_LIMITS.max_id_length  # characters; an installation may allow longer ids than usual


async def read(console: Console, given: Given) -> Answer:
    """Return a page of values. With a search or a filter it is a list, otherwise a level of the tree."""
    words, group = given.text("q", most=MAX_ID), Group.of(given)
    prefix, after = given.text("prefix", most=MAX_ID), given.text("after", most=MAX_ID)
    limit = given.number("limit", PAGE, least=1, most=MOST)
    loaded = await console.states.get(await console.client(), given.key)
    if words or group != Group():
        ids = await matching_ids(console, loaded, words=words, group=group, prefix=prefix)
        found = await loaded.read(partial(_list, ids=ids, after=after, limit=limit))
    else:
        found = await loaded.read(partial(_level, prefix=prefix, after=after, limit=limit))
    functions = [{"name": cut(name, 200), "count": number} for name, number in loaded.functions]
    return {**_head(loaded), "functions": functions, "prefix": prefix, **found}


@dataclass(frozen=True, slots=True)
class Group:
    """Which values are wanted: those in a state (`all`, `error`, `stale`), of a kind (`any` or how they were defined),
    and derived by a function (empty: by any)."""

    state: str = "all"
    kind: str = "any"
    function: str = ""

    @classmethod
    def of(cls, given: Given) -> "Group":
        """Return the group that was asked for. A kind may also be given as a state."""
        state, kind = given.choice("state", STATES), given.choice("kind", KINDS)
        function = given.text("function", most=MAX_ID)
        if state in KINDS:
            state, kind = "all", state
        return cls(state, kind, function)


def _head(loaded: BrowsedState) -> Answer:
    state = loaded.state
    return {
        "position": state.last,
        "covers": state.covers,
        "total": len(loaded.ids),
        "errors": len(loaded.errors),
        "stale": len(loaded.stale),
    }


def _level(loaded: BrowsedState, *, prefix: str, after: str, limit: int) -> Answer:
    """Return the values and groups directly below `prefix`. A group are the ids up to the next slash."""
    low, high = span(loaded.ids, prefix)
    place, rows = start_after(loaded.ids, after, low), list[Answer]()
    while place < high and len(rows) < limit:
        id_ = loaded.ids[place]
        slash = id_.find("/", len(prefix))
        if slash < 0:
            rows.append(value_row(loaded, id_))
            place += 1
        else:
            group = id_[: slash + 1]
            counts = [_within(ids, group) for ids in (loaded.ids, loaded.errors, loaded.stale)]
            rows.append({"group": group, "count": counts[0], "errors": counts[1], "stale": counts[2]})
            place = span(loaded.ids, group)[1]
    last = rows[-1].get("group") or rows[-1]["id"] if rows and place < high else None
    return {"tree": True, "matching": high - low, "rows": rows, "next": last}


def _within(ids: list[str], prefix: str) -> int:
    low, high = span(ids, prefix)
    return high - low


async def matching_ids(
    console: Console, loaded: BrowsedState, *, words: str, group: Group, prefix: str
) -> Sequence[str]:
    """Return the ids that begin with `prefix`, match `words`, and are of this group, in order. Pages of one search, and
    viewers who look at the same, share them.

    What is kept for them are places in `loaded.ids`: ids would stay in memory after the state was replaced, although
    nobody counted them.
    """
    about = ("ids", loaded.number, group)

    async def kept(words: str, find: Callable[[BrowsedState], Sequence[str]]) -> Sequence[str]:
        async def compute() -> "array[int]":
            return await loaded.read(lambda state: state.places(find(state)))

        return PickedIds(loaded.ids, await console.kept.get((*about, words), compute, places_bytes))

    is_state = group == Group(group.state)
    found = _in_state(loaded, group.state) if is_state else await kept("", partial(_group, group=group))
    if words:
        base = found
        searched = partial(_search, words=words) if group == Group() else lambda _: search_ids(base, words)
        found = await kept(words, searched)
    low, high = span(found, prefix)
    return found[low:high] if prefix else found


def places_bytes(places: "array[int]") -> int:
    return 200 + places.itemsize * len(places)


def _in_state(loaded: BrowsedState, state: str) -> list[str]:
    return {"error": loaded.errors, "stale": loaded.stale}.get(state, loaded.ids)


def _group(loaded: BrowsedState, *, group: Group) -> list[str]:
    """Return the ids of the values of a group, in order."""
    ids, cells, kind = _in_state(loaded, group.state), loaded.state.cells, group.kind
    if kind == "any" and not group.function:
        return ids
    if group.function and kind in ("set", "unset"):
        return []
    derived = set(cells.derived(frozenset((group.function,)) if group.function else None))
    if group.function or kind == "derived":
        return [id_ for id_ in ids if id_ in derived]
    unset = set[str]()
    if cells.states().get(State.UNSET):
        unset = {id_ for id_, value in cells.iter_values() if value.state is State.UNSET}
    if kind == "unset":
        return [id_ for id_ in ids if id_ in unset]
    return [id_ for id_ in ids if id_ not in derived and id_ not in unset]


def _search(loaded: BrowsedState, *, words: str) -> Sequence[str]:
    """Return the ids that match, in order."""
    parts = words.split("*") if "*" in words else words.split()
    sure = [part.lower() for part in parts if part and "Σ" not in part]  # its lower case depends on what follows
    return search_ids(loaded.candidates(sure), words)


def search_ids(ids: Sequence[str], words: str) -> Sequence[str]:
    """Return those of `ids` that match: a pattern if `words` has a star, otherwise parts that the id has to contain.

    A call of a function for each id would take longer than the search itself. The loops here are Python's, so that
    other threads get their turn.
    """
    if "*" in words:
        matches = matcher(words)
        return [id_ for id_ in ids if matches(id_)]
    for part in words.lower().split():
        ids = [id_ for id_ in ids if part in id_.lower()]
    return ids


def _list(loaded: BrowsedState, *, ids: Sequence[str], after: str, limit: int) -> Answer:
    """Return a page of `ids`."""
    place = start_after(ids, after, 0)
    page = ids[place : place + limit]
    return {
        "tree": False,
        "matching": len(ids),
        "rows": [value_row(loaded, id_) for id_ in page],
        "next": page[-1] if place + limit < len(ids) else None,
    }


PATTERN_ROW: Answer = {"state": "pattern", "text": "", "error": None, "definition": None}


def value_row(loaded: BrowsedState, id_: str) -> Answer:
    """Return a value as a row of a table."""
    value = loaded.state.value(id_, loaded.stale_set)
    if value is None:
        return {"id": id_, "state": "missing", "text": "", "error": None, "definition": None}
    definition = loaded.state.cells.edit_of(id_)
    return {
        "id": id_,
        "state": value.state.value,
        "text": short_text(value),
        "error": fault_object(value.error),
        "definition": definition_text(definition) if loaded.state.cells.is_derived(id_) else None,
    }


# -- one value ---------------------------------------------------------------------------------------------------------


async def read_one(console: Console, given: Given) -> Answer:
    """Return one value: what it is, why, what it is made of, and what is made of it."""
    id_ = given.text("id", most=MAX_ID)
    loaded = await console.states.get(await console.client(), given.key)
    found = await loaded.read(partial(_explain, id_=id_))
    if found is None:
        raise no_value(given, loaded, id_)
    return {**_head(loaded), **found}


def _explain(loaded: BrowsedState, *, id_: str) -> Answer | None:
    found = explain_value(loaded.state, id_, loaded.stale_set)
    if found is None:
        return None
    return {
        "id": id_,
        "state": found.value.state.value,
        "value": full_text(found.value),
        "error": fault_object(found.value.error),
        "definition": definition_object(found.definition),
        "defined": found.defined or None,
        "why": told_start(found.why),
        "advice": found.advice,
        "path": [value_row(loaded, one) for one in found.path],
        "inputs": list(_inputs(loaded, found)),
        "inputCount": found.input_count,
        "dependents": [value_row(loaded, one) for one in found.dependents],
        "dependentCount": found.dependent_count,
    }


def _inputs(loaded: BrowsedState, found: ValueExplanation) -> Iterator[dict[str, Any]]:
    for one in found.inputs:
        row = value_row(loaded, one.id) if one.matches is None else PATTERN_ROW | {"id": one.id}
        yield {"name": one.name, "matches": one.matches, **row}


def no_value(given: Given, loaded: BrowsedState, id_: str) -> NoSuchValueError:
    name = f"{given.key.workspace}/{given.key.change_set}"
    return NoSuchValueError(f"{name} has no value {id_[:200]!r}", loaded.state.last)


async def read_blame(console: Console, given: Given) -> Answer:
    """Return who last defined a value. If it is stale, also the request that is the cause, and the value that this
    request defined."""
    key, id_ = given.key, given.text("id", most=MAX_ID)
    client = await console.client()
    loaded = await console.states.get(client, key)
    origin, commit = await loaded.read(partial(_cause, id_=id_))
    found = await client.blame(key.workspace, key.change_set, *dict.fromkeys((id_, origin or id_)))
    return {
        "blame": blame_object(found[id_]) if id_ in found else None,
        "cause": cause_object(found[origin], commit) if origin in found else None,
    }


def _cause(loaded: BrowsedState, *, id_: str) -> tuple[str, int]:
    """Return the value because of which `id_` is stale, and the commit that changed it; nothing if it is not stale."""
    found = explain_value(loaded.state, id_, loaded.stale_set) if id_ in loaded.stale_set else None
    return (found.origin, found.origin_commit) if found is not None and found.origin_commit else ("", 0)


def base_path(key: str = "") -> str:
    return f"/change-sets/{{workspace}}/{{changeSet}}{key}"


RESOURCES = (
    Resource(base_path("/values"), read),
    Resource(base_path("/value"), read_one),
    Resource(base_path("/blame"), read_blame),
)
