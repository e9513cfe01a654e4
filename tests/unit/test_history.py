"""Tests how much of a log is kept: the cut depends only on the checkpoints that the log has named."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.commit import CheckpointRef, Commit, Kind
from rebaser_core.history import MAX_MARKS, Mark, Retention, add_mark, purge_through
from rebaser_core.state.change_set import ChangeSetState
from tests.support.checkpoints import restored

HOUR = 3_600_000
MARKS = [Mark(10 * number, 10 * number + 2, number * HOUR, 100 * number) for number in range(1, 6)]
WEIGHT = 550
FOREVER, ALL = 1000 * HOUR, 1 << 40


@pytest.mark.parametrize(
    ("for_ms", "max_bytes", "through"),
    [
        (0, ALL, 40),  # no history: purge up to the checkpoint before the newest one
        (FOREVER, ALL, 0),
        (4 * HOUR, ALL, 10),  # a reader of the state an hour after the epoch starts at mark 10
        (4 * HOUR - 1, ALL, 10),
        (3 * HOUR, ALL, 20),
        (1, ALL, 40),
        (FOREVER, 550, 0),
        (FOREVER, 549, 10),
        (FOREVER, 450, 10),
        (FOREVER, 449, 20),
        (FOREVER, 0, 40),
        (3 * HOUR, 200, 40),  # whichever bound is reached first
        (1 * HOUR, 400, 40),
    ],
)
def test_the_log_is_kept_for_a_time_and_up_to_a_size(for_ms: int, max_bytes: int, through: int) -> None:
    assert purge_through(MARKS, WEIGHT, Retention(for_ms, max_bytes)) == through


def test_where_there_is_no_room_history_gives_way() -> None:
    assert purge_through(MARKS, WEIGHT, Retention(FOREVER, ALL), crowded=True) == 40


def test_the_newest_two_checkpoints_remain() -> None:
    for count in (0, 1):
        assert purge_through(MARKS[:count], WEIGHT, Retention(0, 0), crowded=True) == 0
    assert purge_through(MARKS[:2], WEIGHT, Retention(0, 0), crowded=True) == 10


gaps = st.lists(st.tuples(st.integers(1, 9), st.integers(-5, 9), st.integers(0, 9)), max_size=300)


def marked(rows: list[tuple[int, int, int]]) -> tuple[list[Mark], list[Mark]]:
    """Return the marks that remain, and all marks that there ever were."""
    marks: list[Mark] = []
    ever: list[Mark] = []
    sequence = at_ms = weight = 0
    for gap, later, more in rows:
        sequence, at_ms, weight = sequence + gap, max(at_ms + later, 0), weight + more
        add_mark(marks, CheckpointRef("a", sequence, 1), sequence, at_ms, weight)
        ever.append(marks[-1])
    return marks, ever


@given(gaps, st.integers(1, 500), st.integers(0, 500), st.integers(0, 20))
def test_no_cut_takes_what_is_to_be_kept(
    rows: list[tuple[int, int, int]], for_ms: int, max_bytes: int, tail: int
) -> None:
    """A read at any time within `for_ms` starts at a checkpoint that still exists, unless the log is too large."""
    marks, ever = marked(rows)
    weight = (ever[-1].weight if ever else 0) + tail
    through = purge_through(marks, weight, Retention(for_ms, max_bytes))
    assert through in {0, *[mark.sequence for mark in ever[:-1]]}
    by_time = purge_through(marks, weight, Retention(for_ms, 1 << 40))
    if by_time:
        begin = ever[-1].at_ms - for_ms
        started_from = [mark for mark in ever if mark.at_ms <= begin][-1]
        assert by_time <= started_from.sequence
    if through > by_time:
        older = [mark for mark in marks if mark.sequence < through]
        assert all(weight - mark.weight > max_bytes for mark in older)
        assert weight > max_bytes


@given(gaps)
def test_marks_are_bounded_and_the_newest_remain(rows: list[tuple[int, int, int]]) -> None:
    marks, ever = marked(rows)
    assert len(marks) <= MAX_MARKS
    half = MAX_MARKS // 2
    assert marks[-half:] == ever[-half:]
    assert marks[:1] == ever[:1]
    assert all(older.at_ms <= newer.at_ms for older, newer in pairwise(ever))


def test_of_many_marks_the_first_and_the_newer_half_remain() -> None:
    marks, ever = marked([(1, 1, 1)] * (3 * MAX_MARKS))
    assert MAX_MARKS // 2 < len(marks) <= MAX_MARKS
    assert (marks[0], marks[-MAX_MARKS // 2 :]) == (ever[0], ever[-MAX_MARKS // 2 :])


def commit(state: ChangeSetState, checkpoint: CheckpointRef | None, at_ms: int) -> Commit:
    return Commit("c", state.last, Kind.CHECKPOINT, at_ms, "o", None, None, checkpoint=checkpoint)


def test_the_fold_marks_each_checkpoint_where_it_is_first_named() -> None:
    state = ChangeSetState()
    first, second = CheckpointRef("a", 1, 1), CheckpointRef("b", 3, 1)
    for sequence, (checkpoint, at_ms) in enumerate(
        [(None, 10), (None, 20), (first, 30), (first, 40), (second, 35), (second, 60)], start=1
    ):
        state.fold(sequence, commit(state, checkpoint, at_ms), weight=100)
    assert (state.weight, state.marks) == (600, [Mark(1, 3, 30, 300), Mark(3, 5, 35, 500)])
    again = restored(state)
    assert (again.weight, again.marks) == (state.weight, state.marks)


def test_who_loads_a_checkpoint_marks_it_as_its_writer_does() -> None:
    """The loader first meets commits that name the previous checkpoint, and then the commit that names this one."""
    state = ChangeSetState()
    first = CheckpointRef("a", 1, 1)
    state.fold(1, commit(state, None, 10), weight=100)
    state.fold(2, commit(state, first, 20), weight=100)
    loaded = restored(state)
    for each in (state, loaded):
        each.fold(3, commit(each, first, 30), weight=100)
        each.fold(4, commit(each, CheckpointRef("b", 2, 1), 40), weight=100)
    assert loaded.marks == state.marks == [Mark(1, 2, 20, 200), Mark(2, 4, 40, 400)]
