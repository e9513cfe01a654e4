"""`/change-sets/…/graph`: the neighbourhood of one value, its inputs on one side and the values that use it on the
other.

Invariant: there are at most `MAX_NODES` nodes and `MAX_EDGES` edges, however large the graph. Inputs and
users of a node that are left out are counted.
"""

from collections.abc import Callable
from functools import partial

from rebaser.console.api.values import MAX_ID, base_path, value_row
from rebaser.console.reading.states import BrowsedState
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser_core.errors import UnprocessableError
from rebaser_core.explain.values import matching
from rebaser_core.updates import Derive, Match
from rebaser_core.values import State

MAX_NODES = 150
MAX_EDGES = 300
MAX_FAN = 12  # neighbours of a node on one side
MAX_DEPTH = 4
URGENCY = {State.ERROR: 0, State.STALE: 1}
Neighbours = Callable[[str], list[str]]


async def read(console: Console, given: Given) -> Answer:
    """Return the values around `id`, up to `depth` steps away."""
    id_, depth = given.text("id", most=MAX_ID), given.number("depth", 2, least=1, most=MAX_DEPTH)
    loaded = await console.states.get(await console.client(), given.key)
    if id_ not in loaded.state.cells:
        raise UnprocessableError(f"{given.key.change_set} has no value {id_[:200]!r}", code="no_such_value")
    found = await loaded.read(partial(neighbourhood, id_=id_, depth=depth))
    return {"position": loaded.state.last, **found}


def neighbourhood(loaded: BrowsedState, *, id_: str, depth: int) -> Answer:
    """Return the nodes with their distance from `id_` (negative for inputs), and the edges, each from an input."""
    levels, edges = {id_: 0}, dict[tuple[str, str], None]()
    more_inputs, more_dependents = dict[str, int](), dict[str, int]()
    sides: tuple[tuple[int, Neighbours, dict[str, int]], ...] = (
        (-1, partial(_inputs, loaded), more_inputs),
        (1, partial(_dependents, loaded), more_dependents),
    )
    for step in range(1, depth + 1):
        for side, neighbours, more in sides:
            for one in [name for name, level in levels.items() if level == side * (step - 1)]:
                found = neighbours(one)
                shown = _most_urgent(loaded, found)
                for other in shown:
                    if other not in levels and len(levels) < MAX_NODES:
                        levels[other] = side * step
                    if other in levels and len(edges) < MAX_EDGES:
                        edges[(other, one) if side < 0 else (one, other)] = None
                more[one] = len(found) - len([other for other in shown if other in levels])
    nodes = [
        value_row(loaded, name)
        | {"level": level, "moreInputs": more_inputs.get(name), "moreDependents": more_dependents.get(name)}
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


def _dependents(loaded: BrowsedState, id_: str) -> list[str]:
    return sorted(loaded.state.cells.dependents(id_))


def _most_urgent(loaded: BrowsedState, ids: list[str]) -> list[str]:
    """Return the neighbours to show: those in error first, then those that are stale, and the others as they come."""
    if len(ids) <= MAX_FAN:
        return ids

    def urgency(id_: str) -> int:
        value = loaded.state.value(id_, loaded.stale_set)
        return 2 if value is None else URGENCY.get(value.state, 2)

    return sorted(ids, key=urgency)[:MAX_FAN]


RESOURCES = (Resource(base_path("/graph"), read),)
