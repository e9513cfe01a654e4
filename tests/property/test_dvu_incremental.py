"""The values that incremental updates give equal those of a full recompute, and those of a simple evaluator."""

from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Set
from rebaser_core.values import canonical
from tests.support.forcing import Logged
from tests.support.graphs import Book, run_here
from tests.support.incremental import FIRST, LIMITS, Step, check_at_rest, edit_book, edits

# Few values close to each other, so that results are often equal or almost equal.


@given(st.lists(edits, min_size=1, max_size=8), LIMITS)
def test_edit_and_update_gives_what_a_full_recompute_gives(script: list[Step], limits: Thresholds) -> None:
    with forced(limits):
        book = Logged(FIRST)
        book.update()
        for step in script:
            edit_book(book, step)
            book.update()
            check_at_rest(book)


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


def test_a_value_that_was_an_integer_and_now_fails_blames_no_input() -> None:
    book = Logged([Set("a", 1), Derive("half", "cel", {"a": "a"}, {"expr": "8 / a"})])
    book.update()
    assert book.values()["half"].value == 8
    book.edit(Set("a", 0))
    book.update()
    check_at_rest(book)
    error = book.values()["half"].error
    assert error is not None
    assert error.code == "failed"
