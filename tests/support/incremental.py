"""Random edits of a change set, and a check of its values once all of them are up to date."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st

from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Recompute, Remove, Set, Unset, Update
from tests.support.forcing import Logged, forcing
from tests.support.graphs import Book, expected, typed

IDS = "abcdefgh"


LIMITS = forcing(
    Thresholds(packet_bytes=1),  # one value per packet, so as many waves as levels
    # Several islands in a packet, unless they are too large.
    Thresholds(packet_bytes=150, parallelism=1, task_min_elements=1),
    Thresholds(packet_bytes=400, parallelism=3, task_min_elements=3),
    # always a full plan
    Thresholds(full_plan_min_values=0, full_plan_reach_divisor=1 << 30, full_plan_max_python_share=1.0),
)


ids = st.sampled_from(IDS)


values = st.sampled_from([0.0, -0.0, 1, 1.0, True, 2**62, 1e308, None, "x", [1], {"x": 1}])


LONG = "a text that is longer than its digest"


@dataclass(frozen=True)
class Again:
    """An edit that repeats the definition of `id` unchanged. If `id` has no definition, the edit does nothing."""

    id: str


Step: TypeAlias = Sequence[Update | Again]


def edit_book(book: Book, step: Step, *recompute: Recompute) -> None:
    updates: list[Update] = []
    for one in step:
        updates += book.again([one.id]) or [Remove("nowhere")] if isinstance(one, Again) else [one]
    book.edit(*updates, recompute=recompute)


def derive(id_: str, inputs: list[str], how: str) -> Derive:
    if how == "cel":
        names = [f"n{at}" for at in range(len(inputs))]
        expression = " + ".join(names) or "7"
        return Derive(id_, "cel", dict(zip(names, inputs, strict=True)), {"expr": expression})
    if how == "choose":
        return Derive(id_, "cel", {"x": tuple(inputs)}, {"expr": "size(x) > 1 ? x[1] : 0"})
    if how == "if":
        named = dict(zip(("condition", "then", "else"), inputs, strict=False))
        return Derive(id_, "if", named)
    return Derive(id_, how, {"one": inputs[0], "more": tuple(inputs[1:])} if inputs else {})


FUNCTIONS = ["sum", "product", "max", "count", "list", "concat", "union", "coalesce", "cel", "choose", "if", "nope"]


@st.composite
def tame(draw: st.DrawFn) -> Update:
    """Draw an edit of a graph without cycles and with few errors: the first ids are set, the others derived from ids
    before them."""
    at = draw(st.integers(0, len(IDS) - 1))
    if at < 3:
        return Set(IDS[at], draw(values))
    inputs = draw(st.lists(st.sampled_from(IDS[:at]), min_size=1, max_size=3))
    how = draw(st.sampled_from(["coalesce", "list", "count", "sum", "merge", "format", "pair", "choose"]))
    if how == "format":  # The result is long, and does not depend on the input, so an update stops here.
        return Derive(IDS[at], "format", {"x": inputs[0]}, {"template": LONG})
    if how == "pair":
        return Derive(IDS[at], "list", {"x": tuple(inputs[:2])})
    return derive(IDS[at], inputs, how)


wild: st.SearchStrategy[Update] = st.one_of(
    st.builds(Set, ids, values),
    st.builds(derive, ids, st.lists(st.sampled_from(IDS + "z"), max_size=4), st.sampled_from(FUNCTIONS)),
    st.builds(derive, ids, st.lists(ids, min_size=1, max_size=3), st.sampled_from(FUNCTIONS)),
    st.builds(Unset, ids),
    st.builds(Remove, ids),
)


updates: st.SearchStrategy[Update] = st.one_of(tame(), tame(), tame(), wild)


FIRST: list[Update] = [
    *(Set(id_, at) for at, id_ in enumerate(IDS[:3])),
    *(Derive(id_, "list", {"x": IDS[at], "y": IDS[at + 2]}) for at, id_ in enumerate(IDS[3:])),
]


edits = st.lists(updates | st.builds(Again, ids), min_size=1, max_size=3)


def check_at_rest(book: Logged) -> None:
    assert not book.state.owes
    book.check_reader()
    fresh = Book(book.state.updates())
    fresh.update()
    found = typed(book.values())
    assert found == typed(fresh.values())
    assert found == typed(expected(book.state.updates()))
