"""`/compare`: a page of the values that differ between two change sets of a workspace."""

from functools import partial

from rebaser.console.api.values import MAX_ID, search_ids, value_row
from rebaser.console.reading.comparison import KINDS, Comparison, compare
from rebaser.console.reading.states import BrowsedState
from rebaser.console.resources import Answer, Console, Given, Resource, invalid
from rebaser_core.ids import ChangeSetKey

FILTERS = ("all", *KINDS)
KEPT = 600.0  # seconds: it takes long to compare large change sets again


async def read(console: Console, given: Given) -> Answer:
    """Return a page of the values that differ between the change sets `a` and `b` of a workspace."""
    keys = [ChangeSetKey.of(given.text("workspace"), given.text(name)) for name in ("a", "b")]
    words, kind, (offset, limit) = given.text("q", most=MAX_ID), given.choice("kind", FILTERS), given.page()
    if keys[0] == keys[1]:
        raise invalid("choose two different change sets")
    client = await console.client()
    one, two = [await console.states.get(client, key) for key in keys]
    about = ("compare", *keys, one.state.last, two.state.last)
    found = await console.kept.get(about, partial(compare, one, two), lambda done: done.memory, seconds=KEPT)
    page = partial(_page, found=found, words=words, kind=kind, offset=offset, limit=limit)
    matching, rows = await one.read_with(two, page)
    return {
        "positions": [one.state.last, two.state.last],
        "totals": [len(one.ids), len(two.ids)],
        "counts": {"all": len(found.ids), **found.counts},
        "matching": matching,
        "offset": offset,
        "limit": limit,
        "rows": rows,
    }


def _page(
    one: BrowsedState, two: BrowsedState, *, found: Comparison, words: str, kind: str, offset: int, limit: int
) -> tuple[int, list[Answer]]:
    """Return how many values match, and a page of them."""
    wanted = FILTERS.index(kind) - 1
    places = [place for place, what in enumerate(found.kinds) if wanted in (-1, what)]
    if words:
        matching = set(search_ids(found.ids, words))
        places = [place for place in places if found.ids[place] in matching]
    return len(places), [
        {
            "id": found.ids[place],
            "kind": KINDS[found.kinds[place]],
            "a": _side(one, found.ids[place]),
            "b": _side(two, found.ids[place]),
        }
        for place in places[offset : offset + limit]
    ]


def _side(loaded: BrowsedState, id_: str) -> Answer:
    row = value_row(loaded, id_)
    return {name: row[name] for name in ("state", "text", "error", "definition")}


RESOURCES = (Resource("/compare", read),)
