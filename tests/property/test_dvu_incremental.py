"""At rest, what updates have made step by step is what a full recompute makes, and what a naive evaluator makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Recompute, Remove, Set, Unset, Update
from rebaser_core.values import canonical
from tests.support.forcing import Logged, forcing
from tests.support.graphs import Book, expected, run_here, typed

IDS = "abcdefgh"
LIMITS = forcing(
    Thresholds(packet_bytes=1),  # a packet a value: as many waves as levels
    Thresholds(packet_bytes=150, parallelism=1, task_work=1),  # islands share packets, and do not always fit
    Thresholds(packet_bytes=400, parallelism=3, task_work=3),
    Thresholds(whole=0, share=1 << 30, slow=1.0),  # everything over the structure of the whole
)

ids = st.sampled_from(IDS)
# Few and close to each other, so that results are often the same, and often nearly the same.
values = st.sampled_from([0.0, -0.0, 1, 1.0, True, 2**62, 1e308, None, "x", [1], {"x": 1}])
LONG = "a text that is longer than its digest"


@dataclass(frozen=True)
class Again:
    """An edit: the definition of `id`, if it has one, as it stands; else one that touches nothing."""

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
    """An edit of a graph without cycles and with few errors: the first letters are set, the others derived."""
    at = draw(st.integers(0, len(IDS) - 1))
    if at < 3:
        return Set(IDS[at], draw(values))
    inputs = draw(st.lists(st.sampled_from(IDS[:at]), min_size=1, max_size=3))
    how = draw(st.sampled_from(["coalesce", "list", "count", "sum", "merge", "format", "pair", "choose"]))
    if how == "format":  # says nothing of its input: cut off, and long
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


@settings(deadline=None)
@given(st.lists(edits, min_size=1, max_size=8), LIMITS)
def test_edit_and_update_gives_what_a_full_recompute_gives(script: list[Step], limits: Thresholds) -> None:
    with forced(limits):
        book = Logged(FIRST)
        book.update()
        for step in script:
            edit_book(book, step)
            book.update()
            check_at_rest(book)


@settings(deadline=None)
@given(st.lists(edits, min_size=1, max_size=4), edits, st.lists(edits, max_size=3), LIMITS)
def test_an_update_planned_before_later_edits_is_mended_by_the_next(
    before: list[Step], owed: Step, later: list[Step], limits: Thresholds
) -> None:
    todo = iter(later)

    def edit() -> None:
        for step in todo:
            edit_book(book, step)
            return

    with forced(limits):
        book = Logged(FIRST)
        book.update()
        for step in before:
            edit_book(book, step)
            book.update()
        edit_book(book, owed)
        with book.state.view() as view:
            computed = run_here(view, between=edit)
            for step in todo:
                edit_book(book, step)
            book.commit(computed, view.sequence)
        book.check_reader()
        while book.state.owes:
            book.update()
        check_at_rest(book)


@settings(deadline=None)
@given(st.lists(edits, min_size=2, max_size=6), LIMITS)
def test_how_the_work_is_cut_does_not_show(script: list[Step], limits: Thresholds) -> None:
    book = Book(FIRST)
    book.update()
    for step in script[:-1]:
        edit_book(book, step)
        book.update()
    edit_book(book, script[-1])
    with book.state.view() as one, book.state.view() as other:
        whole = {computed.id: computed for computed in run_here(one)}
        with forced(limits):
            cut = {computed.id: computed for computed in run_here(other)}
    assert {id_: (canonical(c.value), c.fault) for id_, c in whole.items()} == {
        id_: (canonical(c.value), c.fault) for id_, c in cut.items()
    }


@settings(deadline=None)
@given(st.lists(edits, min_size=1, max_size=5))
def test_an_update_writes_only_what_changed_and_a_second_one_nothing(script: list[Step]) -> None:
    book = Book(FIRST)
    book.update()
    for step in script:
        edit_book(book, step)
        before = dict(book.state.cells)
        for computed in book.update():
            old = before[computed.id]
            assert old.state.value == "stale" or (canonical(old.value), old.fault) != (
                canonical(computed.value),
                computed.fault,
            )
    touched = [
        Set(id_, cell.value)
        for id_, cell in book.state.cells.items()
        if cell.state.value == "ok" and not cell.definition
    ]
    if touched:
        book.edit(*touched)
        assert book.update() == ()
