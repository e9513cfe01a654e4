"""`/change-sets/…/graph`: the neighbourhood of one value, its inputs on one side and the values that use it on the
other.

Invariant: there are at most `MAX_NODES` nodes and `MAX_EDGES` edges, however large the graph. Inputs and users of a
node that are left out are counted. Of a node that is expanded, more are shown.
"""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest

from rebaser.console.api.values import MAX_ID, base_path, no_value, value_row
from rebaser.console.reading.states import BrowsedState
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser_core.explain.values import matching
from rebaser_core.updates import Derive, Match
from rebaser_core.values import State

MAX_NODES = 150
MAX_EDGES = 300
MAX_FAN = 12  # neighbours of a node on one side
MAX_DEPTH = 4
MAX_EXPANDED, EXPANDED_FAN = 20, 36  # nodes that are expanded; neighbours of each on one side
MAX_EXPAND = MAX_EXPANDED * (MAX_ID + 1)  # characters of their ids, with line breaks
URGENCY = {State.ERROR: 0, State.STALE: 1}
Neighbours = Callable[[str], list[str]]


async def read(console: Console, given: Given) -> Answer:
    """Return the values around `id`, up to `depth` steps away."""
    id_, depth = given.text("id", most=MAX_ID), given.number("depth", 2, least=1, most=MAX_DEPTH)
    expand = [one for one in given.text("expand", most=MAX_EXPAND).split("\n") if one]  # no id has a line break
    loaded = await console.states.get(await console.client(), given.key)
    if id_ not in loaded.state.cells:
        raise no_value(given, loaded, id_)
    found = await loaded.read(partial(neighbourhood, id_=id_, depth=depth, expand=expand[-MAX_EXPANDED:]))
    return {"position": loaded.state.last, **found}


def neighbourhood(loaded: BrowsedState, *, id_: str, depth: int, expand: Sequence[str] = ()) -> Answer:
    """Return the nodes with their distance from `id_` (negative for inputs), and the edges, each from an input.

    Those of the nodes `expand` that are there get more of their neighbours, one after another."""
    levels, edges = {id_: 0}, dict[tuple[str, str], None]()
    more_inputs, more_dependents = dict[str, int](), dict[str, int]()
    sides: tuple[tuple[int, Neighbours, dict[str, int]], ...] = (
        (-1, partial(_inputs, loaded), more_inputs),
        (1, loaded.state.cells.dependents, more_dependents),
    )

    def add(one: str, side: int, neighbours: Neighbours, more: dict[str, int], fan: int = MAX_FAN) -> None:
        found = neighbours(one)
        for other in _most_urgent(loaded, found, fan, by_id=side > 0):
            if other not in levels and len(levels) < MAX_NODES:
                levels[other] = levels[one] + side
            if other in levels and len(edges) < MAX_EDGES:
                edges[(other, one) if side < 0 else (one, other)] = None
        more[one] = len([other for other in found if other not in levels])

    for step in range(1, depth + 1):
        for side, neighbours, more in sides:
            for one in [name for name, level in levels.items() if level == side * (step - 1)]:
                add(one, side, neighbours, more)
    expanded = set[str]()
    for one in expand:
        if one in levels:
            expanded.add(one)
            for side, neighbours, more in sides:
                add(one, side, neighbours, more, EXPANDED_FAN)
    nodes = [
        value_row(loaded, name)
        | {
            "level": level,
            "expanded": name in expanded,
            "moreInputs": more_inputs.get(name),
            "moreDependents": more_dependents.get(name),
        }
        for name, level in levels.items()
    ]
    return {"id": id_, "nodes": nodes, "edges": [{"from": start, "to": end} for start, end in edges]}


def _inputs(loaded: BrowsedState, id_: str) -> list[str]:
    definition = loaded.state.cells.edit_of(id_) if id_ in loaded.state.cells else None
    if not isinstance(definition, Derive):
        return []
    found: dict[str, None] = {}
    for given in definition.inputs.values():
        for one in (given,) if isinstance(given, (str, Match)) else given:
            found.update(dict.fromkeys(matching(loaded.state, one) if isinstance(one, Match) else (one,)))
    return list(found)


def _most_urgent(loaded: BrowsedState, ids: list[str], most: int, *, by_id: bool) -> list[str]:
    """Return the neighbours to show, by their ids or as they are given. If there are more than `most`, those in error
    or missing come first, then stale ones, and then the others.

    A million neighbours are not sorted: the event loop could do nothing else meanwhile.
    """
    if len(ids) <= most:
        return sorted(ids) if by_id else ids

    def rank(given: tuple[int, str]) -> tuple[int, str, int]:
        place, id_ = given
        value = loaded.state.value(id_, loaded.stale_set)
        return 0 if value is None else URGENCY.get(value.state, 2), id_ if by_id else "", place

    return [id_ for _, id_ in nsmallest(most, enumerate(ids), rank)]


RESOURCES = (Resource(base_path("/graph"), read),)
