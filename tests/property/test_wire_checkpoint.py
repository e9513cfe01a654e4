"""A checkpoint has the state after one commit, whatever happens while it is written, and later commits fold onto it as
onto the original."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core import thresholds
from rebaser_core.checkpoint import read_checkpoint
from rebaser_core.checkpoint.writer import CheckpointDraft
from rebaser_core.commit import Applied, Attempt, Commit, Computed, Decision, Kind, Outcome
from rebaser_core.errors import UnprocessableError
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.rows import all_rows
from rebaser_core.state.selected import fold_selected
from rebaser_core.thresholds import NEVER, Thresholds, forced
from rebaser_core.updates import PATTERN_PREFIX, Derive, Match, Recompute, Remove, Set, Unset, Update
from rebaser_core.values import Fault
from tests.support.checkpoints import Stored, restored, written
from tests.support.example_states import parts
from tests.support.forcing import forcing
from tests.support.random_input import examples
from tests.wire.strategies import json_values

few_ids = st.sampled_from(["a1", "a2", "a3", "a4", "a5", "a6", "a7"])  # few, so that edits concern the same ids
matches = st.sampled_from(["a*", "**", "b/*", "a1"]).map(Match)
some_inputs = st.lists(few_ids | matches, max_size=3).map(tuple).filter(lambda some: list(map(type, some)) != [Match])
edits: st.SearchStrategy[Update] = st.one_of(
    st.builds(Set, few_ids, json_values),
    st.builds(
        Derive,
        few_ids,
        st.sampled_from(["sum", "cel"]),
        st.dictionaries(st.sampled_from("xy"), few_ids | matches | some_inputs, max_size=2),
        st.dictionaries(st.sampled_from(["expr", "n"]), st.sampled_from(["x + y", "x", 1, 1.0, True]), max_size=2),
    ),
    st.builds(Unset, few_ids),
    st.builds(Remove, few_ids),
)
outcomes = st.sampled_from(Outcome)
# A step of a history: edits with the id of their request, the results of a DVU, or an attempt.
steps = st.one_of(
    st.tuples(
        *(st.just(Kind.REBASE), st.lists(edits, max_size=4), st.sampled_from(["r1", "r2", "r3", ""]), outcomes),
        st.lists(st.builds(Recompute, st.sampled_from([None, "sum", "cel", "x"])), max_size=2),
    ),
    st.tuples(st.just(Kind.DVU), st.one_of(json_values, st.builds(Fault, st.just("failed"), st.text(), few_ids))),
    st.tuples(st.just(Kind.ATTEMPT), st.integers(1, 5)),
)


def next_commit(state: ChangeSetState, step: tuple[Any, ...]) -> Commit:
    """Return the commit that an owner with `state` would append for `step`."""
    at = state.last + 1
    if step[0] is Kind.DVU:
        found = step[1]
        stale = sorted(state.stale())
        computed = (Computed(id_, None, found) if isinstance(found, Fault) else Computed(id_, found) for id_ in stale)
        return Commit("d", state.last, Kind.DVU, at, "o", state.applied, state.last, delta=tuple(computed))
    if step[0] is Kind.ATTEMPT:
        attempt = Attempt(at, step[1], at, step[1] % 3)
        return Commit("a", state.last, Kind.ATTEMPT, at, "o", None, state.covers, attempt=attempt)
    _, updates, request_id, outcome, recompute = step
    owes = state.owes or state.wakes(updates) or bool(recompute)
    # A request that was redriven once has a redrive number from then on.
    redrive = 1 if request_id in state.redriven else at % 2
    decision = Decision(at, request_id, outcome, len(updates), "", "why" if outcome is Outcome.DEAD else "", redrive)
    return Commit(
        "r",
        state.last,
        Kind.REBASE,
        at,
        "o",
        Applied("stream:1", at),
        state.covers if owes else None,
        (decision,),
        tuple(updates),
        forget_before_ms=max(at - 5, 0),
        recompute=tuple(recompute),
    )


def folded(history: list[tuple[Any, ...]]) -> ChangeSetState:
    state = ChangeSetState()
    for step in history:
        state.fold(state.last + 1, next_commit(state, step))
    return state


def assert_same(left: ChangeSetState, right: ChangeSetState) -> None:
    assert parts(left) == parts(right)
    assert repr(parts(left)) == repr(parts(right))


@given(st.lists(steps, max_size=20))
def test_all_rows_are_the_values_in_the_order_of_their_ids(history: list[Any]) -> None:
    state = folded(history)
    expected = [(id_, value.value, value.state, value.error) for id_, value in sorted(state.values().items())]
    assert repr(list(all_rows(state))) == repr(expected)


# Several of everything, and further fields.
some_limits = forcing(
    Thresholds(part_rows=5, batch_outcomes=2, batch_rows=3, batch_inputs=4, batch_bytes=16, copy_step_objects=2)
)


@contextmanager
def never_compacted() -> Iterator[None]:
    with forced(replace(thresholds.now, max_deltas=NEVER, deltas_bytes_factor=0, delta_changes_divisor=0)):
        yield


@given(st.lists(steps, max_size=12), st.lists(steps, max_size=12), st.lists(steps, max_size=12), some_limits)
def test_a_checkpoint_is_the_state_when_it_was_begun(
    before: list[Any], meanwhile: list[Any], copied: list[Any], limits: Thresholds
) -> None:
    """Commits that are folded while the checkpoint is written are not in it, and fold onto the restored state with the
    same result."""
    with forced(limits):
        state, expected = folded(before), folded(before)
        late: list[tuple[int, Commit]] = []
        stored = Stored()
        with state.view() as view:
            draft = CheckpointDraft(state, view, stored.chain)
            for step in meanwhile:
                late.append((state.last + 1, next_commit(state, step)))
                state.fold(*late[-1])
            draft.copy()
        for step in copied:
            late.append((state.last + 1, next_commit(state, step)))
            state.fold(*late[-1])
        state.cells.columns.edges.dead_edges = 1 << 20  # as after many edits, so that the inputs are compacted
        state.cells.columns.compact()
        stored.put(draft.write())
        again = stored.read()
        assert_same(again, expected)
        for sequence, commit in late:
            again.fold(sequence, commit)
        assert_same(again, state)
        with never_compacted():
            stored.write(state)
        assert_same(stored.read(), state)


@given(
    st.lists(
        st.lists(steps, max_size=6) | st.just("load") | st.tuples(st.just("fail"), st.lists(steps, max_size=4)),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
    some_limits,
)
def test_a_base_and_its_deltas_are_the_state(script: list[Any], compacted: bool, limits: Thresholds) -> None:
    """Both the writer and a loader continue from each checkpoint, and some checkpoints in between fail."""
    state, stored = ChangeSetState(), Stored()
    with forced(limits), nullcontext() if compacted else never_compacted():
        for entry in script:
            if entry == "load":
                state = stored.read() if stored.chain.base else ChangeSetState()
            elif entry[:1] == ("fail",):
                with state.view() as view:
                    failed = CheckpointDraft(state, view, stored.chain)
                    for step in entry[1]:
                        state.fold(state.last + 1, next_commit(state, step))
                failed.discard()
            else:
                for step in entry:
                    state.fold(state.last + 1, next_commit(state, step))
                if state.last != stored.chain.last:
                    stored.write(state)
                    assert_same(stored.read(), state)
                    columns = stored.read().cells.columns
                    assert len(columns.index) + len(columns.free) == columns.count


@given(
    st.lists(st.tuples(st.lists(steps, max_size=5), st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.booleans(),
    some_limits,
)
def test_a_chain_of_both_formats_says_when_a_value_was_defined_or_no_later_than_when(
    script: list[tuple[list[Any], bool, bool]], compacted: bool, limits: Thresholds
) -> None:
    """Each entry is a server: what it folds, whether it keeps history, and whether it also writes the next part."""
    state, stored, defined = ChangeSetState(), Stored(), dict[str, int]()
    all_tracked = True
    with forced(limits), nullcontext() if compacted else never_compacted():
        for history, tracked, stays in script:
            for step in history:
                commit = next_commit(state, step)
                state.fold(state.last + 1, commit)
                if commit.kind is Kind.REBASE:
                    defined |= {update.id: state.last for update in commit.delta}
            if state.last == stored.chain.last:
                continue
            stored.write(state, tracked=tracked)
            all_tracked &= tracked
            if not (stays and tracked):  # a server with changed settings has to load the change set
                state = stored.read()
            for id_, sequence in defined.items():
                assert sequence <= state.defined_by(id_) <= state.last
                if id_ in state.cells:
                    assert state.cells.edited(id_) in ((sequence,) if all_tracked else (0, sequence))
                    assert state.defined_by(id_) == sequence or not all_tracked


few_edits = st.lists(edits, max_size=3)


@examples(2)
@given(st.lists(edits, min_size=3, max_size=8), few_edits, few_edits, few_edits, few_edits)
def test_a_checkpoint_that_failed_leaves_its_changes_to_the_next(
    first: list[Update], before: list[Update], copied: list[Update], written: list[Update], after: list[Update]
) -> None:
    """The changes include those that only the failed checkpoint had, because an update has covered them."""
    state, stored = ChangeSetState(), Stored()

    def edit(updates: list[Update]) -> None:
        state.fold(state.last + 1, next_commit(state, (Kind.REBASE, updates, "", Outcome.SUCCESS, ())))

    with never_compacted():
        edit(first)
        stored.write(state)
        edit(before)
        with state.view() as view:
            failed = CheckpointDraft(state, view, stored.chain)
            edit(copied)
        edit(written)
        failed.discard()
        edit(after)
        state.fold(state.last + 1, next_commit(state, (Kind.DVU, 1)))
        assert not state.owes
        stored.write(state)
    assert_same(stored.read(), state)


@given(st.lists(steps, max_size=12))
def test_equal_texts_of_a_checkpoint_are_one_object(history: list[Any]) -> None:
    again = restored(folded(history))
    own = {id_: id_ for id_ in again.cells}
    for cell in again.cells.values():
        for input_id in cell.inputs:
            assert input_id[0] == PATTERN_PREFIX or own.setdefault(input_id, input_id) is input_id


@given(st.lists(steps, min_size=1, max_size=12), st.data())
def test_a_checkpoint_that_is_cut_off_is_never_taken_for_a_whole_one(history: list[Any], data: st.DataObject) -> None:
    (whole,) = written(folded(history)).parts
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(UnprocessableError):
        read_checkpoint(cut)


def assert_selected(found: ChangeSetState, whole: ChangeSetState, ids: frozenset[str]) -> None:
    assert set(found.cells) == ids & set(whole.cells)
    for id_ in ids:
        for read in (found.cells.get, found.cells.edited, found.cells.edit_of):
            assert repr(read(id_)) == repr(getattr(whole.cells, read.__name__)(id_))
    about = [(one.last, one.edited, one.weight, one.marks, one.taken, one.protected) for one in (found, whole)]
    assert about[0] == about[1]
    assert found.owes or not whole.owes
    if not found.owes or not any(map(found.cells.is_derived, ids)):  # otherwise only the whole state can tell
        stale = found.stale(), whole.stale()
        assert [found.value(id_, stale[0]) for id_ in ids] == [whole.value(id_, stale[1]) for id_ in ids]


@examples(2)
@given(
    st.lists(st.tuples(st.lists(steps, max_size=5), st.booleans()), min_size=1, max_size=6),
    st.lists(steps, min_size=1, max_size=6),
    st.frozensets(few_ids, max_size=3),
    st.booleans(),
    some_limits,
)
def test_a_few_values_of_a_checkpoint_are_those_of_the_state_and_fold_on_as_they_do(
    script: list[tuple[list[Any], bool]], later: list[Any], ids: frozenset[str], compacted: bool, limits: Thresholds
) -> None:
    """The checkpoint may have any layers and formats. Later commits are folded for the selected values only."""
    state, stored = ChangeSetState(), Stored()
    with forced(limits), nullcontext() if compacted else never_compacted():
        for history, tracked in script:
            for step in history:
                state.fold(state.last + 1, next_commit(state, step))
            if state.last != stored.chain.last:
                stored.write(state, tracked=tracked)
                whole = stored.read()
                assert_selected(stored.read(ids), whole, ids)
        found, state = (stored.read(ids), stored.read()) if stored.chain.base else (ChangeSetState(), ChangeSetState())
        for step in later:
            sequence, commit = state.last + 1, next_commit(state, step)
            state.fold(sequence, commit)
            for _ in fold_selected(found, sequence, commit, ids):
                pass
            assert_selected(found, state, ids)
