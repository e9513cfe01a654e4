"""The folded state: the result of commits, and what an open view shows while further commits are folded."""

from dataclasses import replace
from threading import Event, Thread

import pytest

from rebaser_core.commit import DVU_ATTEMPT, Applied, Attempt, Commit, Computed, Decision, Kind, Outcome
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import BrokenChain, ChangeSetState, View
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Recompute, Remove, Set, Unset, Update
from rebaser_core.values import Fault, Json, State, canonical


def rebase(state: ChangeSetState, *updates: Update, requests: tuple[Decision, ...] = (), at_ms: int = 0) -> Commit:
    settled = not state.owes and not state.wakes(updates)
    return Commit(
        id="c",
        previous=state.last,
        kind=Kind.REBASE,
        at_ms=at_ms,
        owner="o",
        applied=Applied("s", state.last + 1),
        covers=None if settled else state.covers,
        requests=requests,
        delta=updates,
    )


def ask(state: ChangeSetState, *asked: Recompute) -> Commit:
    """Return a commit that requests a recompute."""
    return replace(rebase(state), covers=state.covers, recompute=asked)


def dvu(state: ChangeSetState, covers: int, *computed: Computed) -> Commit:
    return Commit("d", state.last, Kind.DVU, 0, "o", state.applied, covers, delta=computed)


def test_a_derived_value_is_stale_until_a_dvu_covers_it() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Set("a", 1), Derive("b", "sum", {"values": ["a"]}), Derive("c", "sum", {"x": "b"})))
    assert state.covers == 0
    assert state.owes
    assert {id_: value.state for id_, value in state.values().items()} == {
        "a": State.OK,
        "b": State.STALE,
        "c": State.STALE,
    }
    state.fold(2, dvu(state, 1, Computed("b", 1), Computed("c", fault=Fault("failed", "no", "c"))))
    assert state.covers == 1
    assert not state.owes
    assert state.values()["b"].value == 1  # type: ignore[unreachable]
    assert state.values()["c"].error == Fault("failed", "no", "c")


def test_a_root_touched_after_the_dvu_was_planned_stays_owed() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Set("a", 1), Derive("b", "sum", {"values": ["a"]})))
    state.fold(2, rebase(state, Set("a", 2)))
    state.fold(3, dvu(state, 1, Computed("b", 1)))
    assert state.roots == {"a": 2}
    assert state.values()["b"].state is State.STALE


def test_a_set_that_wakes_nothing_is_covered_by_its_own_commit() -> None:
    state = ChangeSetState()
    state.fold(7, rebase(state, Set("a", 1)))
    assert (state.covers, state.owes) == (7, False)


def test_an_id_that_does_not_exist_yet_wakes_what_waits_for_it() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Derive("b", "sum", {"values": ["a"]})))
    state.fold(2, dvu(state, 1, Computed("b", fault=Fault("missing_input", "a", "b"))))
    assert state.wakes([Set("a", 1)])
    state.fold(3, rebase(state, Set("a", 1)))
    assert state.stale() == {"b"}


def test_removed_values_are_roots_and_leave_no_edges() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Set("a", 1), Derive("b", "sum", {"values": ["a"]})))
    state.fold(2, rebase(state, Remove("b")))
    assert not state.cells.is_input("a")
    assert state.cells.dependents("a") == []
    assert state.roots == {"a": 1, "b": 2}
    state.fold(3, rebase(state, Remove("nothing")))
    assert "nothing" not in state.roots


def test_unset_creates_an_unset_value() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Unset("a")))
    assert state.values()["a"].state is State.UNSET
    assert list(state.updates()) == [Unset("a")]


def test_updates_rebuild_the_state() -> None:
    state = ChangeSetState()
    edits = [Set("a", {"x": [1]}), Derive("b", "sum", {"values": ("a", "z")}, {"p": 1}), Unset("c")]
    state.fold(1, rebase(state, *edits))  # type: ignore[arg-type]
    assert sorted(state.updates(), key=lambda update: update.id) == edits


def test_a_commit_that_does_not_follow_changes_nothing() -> None:
    state = ChangeSetState()
    state.fold(3, rebase(state, Set("a", 1)))
    stray = Commit("x", 2, Kind.REBASE, 0, "o", None, None, delta=(Set("a", 2),))
    with pytest.raises(BrokenChain):
        state.fold(4, stray)
    assert state.values()["a"].value == 1


def test_removing_what_never_was_leaves_no_debt_that_nobody_could_pay() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Derive("b", "sum", {"values": ["a"]})))
    state.fold(2, Commit("d", 1, Kind.DVU, 0, "o", state.applied, 1, delta=(Computed("b", 0),)))
    assert not state.owes
    state.fold(3, rebase(state, Remove("a")))
    assert (state.owes, state.covers) == (False, 3)
    state.fold(4, rebase(state, Set("a", 1), Remove("a")))
    assert (state.owes, state.covers) == (True, 3)


def test_outcomes_are_forgotten_by_the_time_the_commit_names() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, requests=(Decision(1, RequestId("old"), Outcome.SUCCESS),), at_ms=100))
    state.fold(2, rebase(state, requests=(Decision(2, RequestId("young"), Outcome.SUCCESS),), at_ms=200))
    last = Commit("x", 2, Kind.REBASE, 300, "o", None, None, forget_before_ms=150)
    state.fold(3, last)
    assert list(state.outcomes) == ["young"]


def test_the_outcome_of_a_redriven_request_outlives_every_dead_letter() -> None:
    """Otherwise, a request whose dead letter could not be deleted would be applied again after a late redrive."""
    state = ChangeSetState()
    done = (Decision(1, RequestId("plain"), Outcome.SUCCESS), Decision(2, "back", Outcome.SUCCESS, redrive=1))  # type: ignore[arg-type]
    state.fold(1, rebase(state, requests=done, at_ms=100))
    month = 30 * 24 * 3600 * 1000
    state.fold(2, Commit("x", 1, Kind.REBASE, month, "o", None, None, forget_before_ms=month))
    assert state.recorded(RequestId("plain")) is None
    assert state.recorded(RequestId("back")) is not None
    state.fold(3, Commit("x", 2, Kind.REBASE, 2 * month, "o", None, None, forget_before_ms=2 * month))
    assert state.recorded(RequestId("back")) is None


def test_a_request_that_was_redriven_has_its_last_outcome_alone() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, requests=(Decision(1, RequestId("r"), Outcome.DEAD),)))
    state.fold(2, rebase(state, requests=(Decision(2, RequestId("r"), Outcome.SUCCESS, redrive=1),)))
    recorded = state.recorded(RequestId("r"))
    assert recorded is not None
    assert (recorded.decision.outcome, recorded.commit) == (Outcome.SUCCESS, 2)
    assert (list(state.outcomes), list(state.redriven)) == ([], ["r"])
    for sequence, id_ in ((3, "q"), (4, "r")):
        decision = Decision(sequence, RequestId(id_), Outcome.SUCCESS, redrive=2)
        state.fold(sequence, rebase(state, requests=(decision,)))
    # The newest is last, on which checkpoints and the end of the retry window depend.
    assert list(state.redriven) == ["q", "r"]


def test_an_attempt_that_was_taken_back_leaves_nothing() -> None:
    state = ChangeSetState()
    for attempt in (Attempt(7, 0, 5, 1), Attempt(7, 0, 5, 0)):
        before = dict(state.attempts)
        state.fold(state.last + 1, Commit("x", state.last, Kind.ATTEMPT, 5, "o", None, None, attempt=attempt))
        assert before != state.attempts
    assert state.attempts == {}


def test_an_attempt_at_the_dvu_stands_until_one_lands() -> None:
    state = ChangeSetState()

    def fold(kind: Kind, covers: int | None, attempt: Attempt | None = None, stream: str = "s") -> None:
        commit = Commit("x", state.last, kind, 5, "o", Applied(stream, 9), covers, attempt=attempt)
        state.fold(state.last + 1, commit)

    deadly, held = Attempt(DVU_ATTEMPT, 0, 5, 1), Attempt(10, 1, 5)
    fold(Kind.ATTEMPT, 0, deadly)
    fold(Kind.ATTEMPT, 0, held)
    fold(Kind.REBASE, 0)
    assert state.attempts == {DVU_ATTEMPT: deadly, 10: held}
    fold(Kind.REBASE, 0, stream="another")
    assert state.attempts == {DVU_ATTEMPT: deadly}
    fold(Kind.DVU, 1)
    assert state.attempts == {}


def dependents(view: View, id_: str) -> list[str]:
    columns = view.columns
    return [columns.ids[row] for row in columns.dependents(columns.index[id_])]


def test_a_view_keeps_its_graph_while_commits_are_folded() -> None:
    state = ChangeSetState()
    state.fold(
        1,
        rebase(state, Set("a", 1), Set("z", 0), Derive("b", "sum", {"values": ["a"]}), Derive("c", "sum", {"x": "a"})),
    )
    with state.view() as view:
        state.fold(2, rebase(state, Set("a", 9), Derive("b", "sum", {"values": ["z"]}), Remove("c")))
        state.fold(3, rebase(state, Derive("d", "sum", {"values": ["a"]})))
        assert view.sequence == 1
        assert sorted(dependents(view, "a")) == ["b", "c"]
        assert dependents(view, "z") == []
        a, d = view.cell("a"), view.cell("d")
        assert a is not None
        assert a.value == 1
        assert d is None
        assert sorted(view.ids()) == ["a", "b", "c", "z"]
    with state.view() as view:
        assert dependents(view, "a") == ["d"]
        assert dependents(view, "z") == ["b"]


@pytest.mark.parametrize("again", [1.0, True, "1"])
def test_a_parameter_that_changes_only_its_type_beside_a_view_is_another_definition(again: Json) -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Set("a", 1), Derive("b", "sum", {"x": "a"}, {"p": 1})))
    with state.view():
        state.fold(2, rebase(state, Derive("b", "sum", {"x": "a"}, {"p": again})))
    assert not state.merge_overlay(2)
    definition = state.cells["b"].definition
    assert definition is not None
    assert canonical(definition.params["p"]) == canonical(again)


def test_definitions_are_of_another_generation_whenever_one_comes_or_goes() -> None:
    """Caches of the graph are valid as long as the generation stays the same."""
    state = ChangeSetState()
    derive = Derive("b", "sum", {"x": "a"})
    seen = [state.cells.columns.definition_generation]
    updates: list[Update] = [derive, Set("b", 1), derive, Unset("b"), derive, derive, Remove("b")]
    for sequence, update in enumerate(updates, 1):
        state.fold(sequence, rebase(state, update))
        seen.append(state.cells.columns.definition_generation)
    assert seen == sorted(set(seen))
    state.fold(8, rebase(state, Set("a", 1), Set("c", 1), Remove("c")))
    assert state.cells.columns.definition_generation == seen[-1]


def test_a_thread_keeps_what_it_works_on_until_it_ends() -> None:
    """The caller that cancelled the thread has closed the view long ago."""
    state = ChangeSetState()
    state.fold(1, rebase(state, Set("a", 1)))
    view = state.view()
    begun, over = Event(), Event()
    seen: list[object] = []

    def work() -> None:
        begun.set()
        over.wait(60)
        seen.append(view.columns.value(view.columns.index["a"]))

    thread = Thread(target=view.run, args=(work,))
    thread.start()
    begun.wait(60)
    view.close()
    assert state.pinned
    state.fold(2, rebase(state, Set("a", 2)))
    over.set()
    thread.join(60)
    assert (seen, state.pinned, state.values()["a"].value) == ([1], False, 2)
    with pytest.raises(RuntimeError, match="closed"):
        view.run(work)
    assert not state.pinned


def test_when_a_value_was_defined_is_known_beside_a_view_and_after_it() -> None:
    """A request that expects an earlier position must be refused."""
    state, rule = ChangeSetState(), Derive("d", "sum", {"x": "a"})
    state.fold(1, rebase(state, Set("a", 1), rule, Set("e", 1)))
    with state.view():
        state.fold(2, rebase(state, Set("a", 2), replace(rule, function="min"), Set("n", 7)))
        state.fold(3, rebase(state, Derive("n", "sum", {"x": "a"}), Remove("e")))
        state.fold(4, dvu(state, 1, Computed("d", 1)))
        assert [state.defined_by(id_) for id_ in "aden"] == [2, 2, 3, 3]
        assert state.values()["n"].value == state.cells["n"].value == 7
    while state.merge_overlay(1):
        pass
    assert state.cells.overlay_empty
    assert [state.defined_by(id_) for id_ in "aden"] == [2, 2, 3, 3]
    state.untracked = 1
    state.cells.apply(Set("of an older format", 1))
    assert state.defined_by("of an older format") == 1


def test_an_input_that_is_named_twice_is_used_until_both_are_gone() -> None:
    for at_once in (1, 1000):
        with forced(Thresholds(vectorized_write_min_inputs=at_once)):
            state = ChangeSetState()
            state.fold(1, rebase(state, Derive("b", "sum", {"x": ("a", "a")}), Derive("c", "sum", {"x": ("a",)})))
            state.fold(2, rebase(state, Remove("b")))
            assert state.cells.is_input("a")
            assert state.cells.dependents("a") == ["c"]
            state.fold(3, rebase(state, Remove("c")))
            assert not state.cells.is_input("a")


def test_dependents_are_found_after_many_edits_without_a_lookup() -> None:
    with forced(Thresholds(dependents_drop_min_edges=2)):
        state = ChangeSetState()
        state.fold(1, rebase(state, Set("a", 1), *(Derive(f"v{n}", "sum", {"x": "a"}) for n in range(9))))
        assert sorted(state.cells.dependents("a")) == [f"v{n}" for n in range(9)]


def test_a_view_keeps_the_roots_that_it_was_opened_with() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Set("a", 1), Derive("b", "sum", {"values": ["a"]})))
    with state.view() as view:
        state.fold(2, rebase(state, Derive("c", "sum", {"values": ["a"]})))
        assert view.roots == {"a": 1, "b": 1}
    assert state.roots == {"a": 1, "b": 1, "c": 2}


def test_what_is_to_be_recomputed_is_owed_until_a_dvu_covers_it() -> None:
    state = ChangeSetState()
    edits = [
        Set("a", 1),
        Derive("b", "sum", {"x": "a"}),
        Derive("c", "max", {"x": "b"}),
        Derive("d", "min", {"x": "a"}),
    ]
    state.fold(1, rebase(state, *edits))  # type: ignore[arg-type]
    state.fold(2, dvu(state, 1, Computed("b", 1), Computed("c", 1), Computed("d", 1)))
    assert (state.owes, state.debt) == (False, 0)
    state.fold(3, ask(state, Recompute("sum")))
    assert (state.owes, state.debt, state.covers) == (True, 1, 1)
    assert state.stale() == {"b", "c"}  # also what depends on it, and nothing else
    state.fold(4, ask(state, Recompute("min")))
    assert (state.debt, state.debt_after(3), state.debt_after(4)) == (2, 1, 0)
    state.fold(5, dvu(state, 3))
    assert state.recompute == {Recompute("min"): 4}
    assert state.stale() == {"d"}
    state.fold(6, rebase(state))
    assert (state.owes, state.covers) == (True, 3)
    state.fold(7, dvu(state, 6))
    assert (state.owes, state.covers, state.stale()) == (False, 6, set())
    state.fold(8, ask(state, Recompute("max")))
    state.fold(9, rebase(state, Set("a", 2)))
    assert state.stale() == {"b", "c", "d"}  # also what depends on the edit


def test_what_was_brought_in_order_is_left_alone_until_enough_is_worn_again() -> None:
    """A full compaction costs as much as all definitions."""
    state = ChangeSetState()
    for sequence in (1, 2, 3):
        state.fold(sequence, rebase(state, Derive("b", "sum", {"x": ["a", "c", "d"]})))
    columns = state.cells.columns
    with forced(Thresholds(dependents_rebuild_min_edges=0, compact_min_dead_inputs=0)):
        columns.compact()
        refs, targets = columns.refs, columns.edges.targets
        columns.compact()
    assert columns.refs is refs
    assert columns.edges.targets is targets


def test_what_is_asked_for_again_during_a_dvu_is_owed_after_it() -> None:
    """The code of the function may have changed in between."""
    state = ChangeSetState()
    state.fold(1, rebase(state, Derive("b", "sum", {"x": "a"})))
    state.fold(2, dvu(state, 1, Computed("b")))
    state.fold(3, ask(state, Recompute("sum")))
    state.fold(4, ask(state, Recompute("sum")))
    assert (state.debt, state.debt_after(3)) == (1, 1)
    state.fold(5, dvu(state, 3))
    assert (state.recompute, state.stale()) == ({Recompute("sum"): 4}, {"b"})


def test_asking_for_all_includes_what_was_asked_for_before() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Derive("b", "sum", {"x": "a"}), Derive("c", "max", {"x": "a"})))
    state.fold(2, dvu(state, 1, Computed("b"), Computed("c")))
    state.fold(3, ask(state, Recompute("sum")))
    state.fold(4, ask(state, Recompute()))
    assert (state.recompute, state.stale()) == ({Recompute(): 4}, {"b", "c"})
    state.fold(5, ask(state, Recompute("sum")))
    assert state.recompute == {Recompute(): 4, Recompute("sum"): 5}
    assert state.stale() == {"b", "c"}


def test_a_view_keeps_what_was_to_be_recomputed_and_what_is_defined_beside_it_counts() -> None:
    state = ChangeSetState()
    state.fold(1, rebase(state, Derive("b", "sum", {"x": "a"}), Derive("gone", "sum", {"x": "a"})))
    state.fold(2, dvu(state, 1, Computed("b"), Computed("gone")))
    state.fold(3, ask(state, Recompute("sum")))
    with state.view() as view:
        state.fold(4, rebase(state, Derive("c", "sum", {"x": "a"}), Derive("d", "max", {"x": "a"}), Remove("gone")))
        state.fold(5, ask(state, Recompute("max")))
        assert view.recompute == {Recompute("sum"): 3}
        assert (state.cells.uses("max"), state.cells.uses("min"), state.cells.uses(None)) == (True, False, True)
        assert set(state.cells.derived(frozenset({"sum"}))) == {"b", "c"}
        assert set(state.cells.derived()) == {"b", "c", "d"}
    assert set(state.cells.derived(frozenset({"max"}))) == {"d"}
