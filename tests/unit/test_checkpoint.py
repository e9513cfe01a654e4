"""Checkpoints: their content, their size, and their readers."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from rebaser_core.checkpoint import Chain, PartRef, read_checkpoint
from rebaser_core.checkpoint.writer import CheckpointDraft
from rebaser_core.commit import Applied, CarriedOutcome, Commit, Computed, Decision, Kind, Origin, Outcome
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import Cell, ChangeSetState
from rebaser_core.state.outcomes import unpack
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Remove, Set, Unset, Update
from rebaser_core.values import Fault, Json, State, canonical
from tests.support.checkpoints import Stored, head, restored, table, written
from tests.support.example_states import parts


def edit(state: ChangeSetState, *updates: Update) -> None:
    state.fold(state.last + 1, Commit("c", state.last, Kind.REBASE, 0, "o", None, state.covers, delta=updates))


def compute(state: ChangeSetState, *found: Computed) -> None:
    state.fold(state.last + 1, Commit("c", state.last, Kind.DVU, 0, "o", None, state.last, delta=found))


def made(*updates: Update) -> ChangeSetState:
    state = ChangeSetState()
    edit(state, *updates)
    return state


def test_an_empty_state_comes_back_empty() -> None:
    assert parts(restored(ChangeSetState())) == parts(ChangeSetState())


def test_what_requests_asked_for_is_kept_beside_their_outcomes() -> None:
    """The digests are stored where a reader of the last release, which refuses longer rows, ignores them."""
    state, stored = ChangeSetState(), Stored()
    for at in range(1, 8):
        one = Decision(
            at, RequestId(f"r{at}"), Outcome.SUCCESS, 1, redrive=at % 2, digest=bytes([at] * 8) if at % 3 else b""
        )
        state.fold(at, Commit("c", at - 1, Kind.REBASE, 0, "o", None, None, (one,)))
        with forced(Thresholds(delta_changes_divisor=0, batch_outcomes=2)):
            stored.write(state)
    found = stored.read()
    for read, was in ((found.outcomes, state.outcomes), (found.redriven, state.redriven)):
        assert read == was
        assert [one.decision.digest for one in read.unpacked()] == [one.decision.digest for one in was.unpacked()]


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    values: list[Json] = [
        None,
        False,
        True,
        0,
        1,
        -(2**63),
        2**63 - 1,
        0.0,
        -0.0,
        1e308,
        "",
        "x",
        [1, 1.0, True],
        {"k": None},
    ]
    found = restored(made(*[Set(f"v{at}", value) for at, value in enumerate(values)])).values()
    assert [canonical(found[f"v{at}"].value) for at in range(len(values))] == list(map(canonical, values))


def test_deltas_may_follow_an_empty_base() -> None:
    state, stored = ChangeSetState(), Stored()
    stored.write(state)
    edit(state, Set("a", 1))
    with forced(Thresholds(delta_changes_divisor=0)):
        assert stored.write(state).chain.deltas
    assert parts(stored.read()) == parts(state)


def test_any_tool_reads_the_values() -> None:
    """A reader needs only Arrow, for a base and for a delta."""
    state, stored = ChangeSetState(), Stored()
    edit(state, Set("n", 3), Set("x", 2.5), Set("yes", True), Set("word", "a"), Set("list", [1]), Set("nothing", None))
    edit(
        state,
        Unset("u"),
        Derive("sum", "sum", {"values": ("n", "gone", "n"), "x": "x"}, {"digits": 2}),
        Derive("e", "f"),
    )
    compute(state, Computed("sum", 8.5), Computed("e", None, Fault("failed", "no", "e")))
    (base,) = stored.write(state).parts
    rows = {row.pop("id"): {name: it for name, it in row.items() if it is not None} for row in table(base)}
    definition = json.loads(rows["sum"].pop("definition"))
    ids = list(rows)
    assert [ids[at] for at in rows["sum"].pop("inputs")] == ["n", "gone", "n", "x"]
    assert definition == {"function": "sum", "inputs": {"values": 3, "x": None}, "params": {"digits": 2}}
    assert rows.pop("e")["error_code"] == "failed"
    edited = {id_: row.pop("edited", None) for id_, row in rows.items()}
    assert edited == dict.fromkeys(["n", "x", "yes", "word", "list", "nothing"], 1) | {"u": 2, "sum": 2, "gone": None}
    assert rows == {
        "n": {"state": "ok", "integer": 3},
        "x": {"state": "ok", "double": 2.5},
        "yes": {"state": "ok", "boolean": True},
        "word": {"state": "ok", "text": "a"},
        "list": {"state": "ok", "json": "[1]"},
        "nothing": {"state": "ok"},
        "u": {"state": "unset"},
        "sum": {"state": "ok", "double": 8.5},
        "gone": {"state": "absent"},
    }
    edit(state, Remove("yes"), Derive("more", "sum", {"values": ("n",)}))
    (delta,) = stored.write(state).parts
    rows = {row["id"]: row for row in table(delta)}
    assert {id_: row["state"] for id_, row in rows.items()} == {"more": "stale", "yes": "absent", "n": None}
    assert rows["more"]["inputs"] == [list(rows).index("n")]
    assert head(delta)["base"] == [[stored.chain.base[0].address, len(base)]]


@pytest.mark.parametrize("of_a_view", [False, True], ids=["at-once", "beside-a-view"])
def test_a_delta_costs_what_changed_whatever_the_size(of_a_view: bool) -> None:
    sizes = []
    for count in (3_000, 12_000):
        state, stored = made(*(Set(f"v{n}", n) for n in range(count))), Stored()
        edit(state, Derive("sum", "sum", {"values": ("v1", "v2")}), Derive("other", "sum", {"values": ("v3",)}))
        base = stored.write(state).parts
        with state.view() as view:
            if not of_a_view:
                view.close()
            edit(state, Set("v1", -1), Remove("v7"), Set("new", "x"))
            compute(state, Computed("sum", 5))
        delta = stored.write(state)
        assert [len(table(data)) for data in base] == [count + 2]
        assert {row["id"] for row in table(*delta.parts)} == {"v1", "sum", "new", "v7", "v2"}
        again = stored.read()
        assert [again.cells.get(id_) for id_ in ("v1", "v7", "new", "sum", "v2")] == [
            *(Cell(-1, State.OK), None, Cell("x", State.OK), state.cells["sum"], Cell(2, State.OK))
        ]
        assert (len(again.cells), again.roots) == (count + 2, state.roots)
        sizes.append(delta.chain.newest.size)
        (nothing,) = stored.write(state).parts
        assert table(nothing) == [], "what is written is not written again"
    assert abs(sizes[1] - sizes[0]) < 500  # bytes


def test_what_is_gone_and_named_again_is_in_the_delta() -> None:
    state, stored = made(*(Set(f"v{n}", n) for n in range(10))), Stored()
    stored.write(state)
    edit(state, Remove("v1"))
    edit(state, Derive("sum", "sum", {"values": ("v1",)}))
    assert {row["id"]: row["state"] for row in table(*stored.write(state).parts)} == {"v1": "absent", "sum": "stale"}
    assert parts(stored.read()) == parts(state)


def test_a_definition_that_goes_with_its_own_input_is_gone() -> None:
    state, stored = (
        made(*(Set(f"v{n}", n) for n in range(10)), Derive("self", "sum", {"values": ("self", "no")})),
        Stored(),
    )
    stored.write(state)
    edit(state, Remove("self"))
    stored.write(state)
    assert stored.chain.deltas
    again = stored.read()
    assert parts(again) == parts(state)
    assert {"self", "no"}.isdisjoint(again.cells.columns.index)


def test_an_update_of_many_values_is_in_the_delta() -> None:
    """The results of a large update are stored as arrays by separate code."""
    state, stored = made(Set("a", 1), *(Derive(f"d{n}", "sum", {"values": ("a",)}) for n in range(100))), Stored()
    stored.write(state)
    columns = state.cells.columns
    rows = columns.rows()[1:11]
    columns.computed_all(rows, columns.kind[rows], columns.bits[rows], {0: "text"}, {1: Fault("failed", "no", "d1")})  # type: ignore[arg-type]
    state.last += 1
    delta = stored.write(state)
    assert [row["id"] for row in table(*delta.parts)] == [*(f"d{n}" for n in range(10)), "a"]
    assert stored.read().cells == state.cells


def test_a_delta_leaves_nothing_of_the_values_and_faults_that_it_replaces() -> None:
    rules = [Derive(f"d{n}", "sum", {"x": "v0"}) for n in range(3)]
    state, stored = made(*(Set(f"v{n}", "text") for n in range(20)), *rules), Stored()
    compute(state, Computed("d0", fault=Fault("failed", "no", "d0")), Computed("d1", "text"), Computed("d2", "text"))
    stored.write(state)
    compute(state, Computed("d0", 1), Computed("d1", 1), Computed("d2", fault=Fault("failed", "no", "d2")))
    assert stored.write(state).chain.deltas
    columns = stored.read().cells.columns
    assert [columns.ids[row] for row in columns.faults] == ["d2"]
    assert sorted(columns.ids[row] for row in columns.other) == sorted(f"v{n}" for n in range(20))


def test_a_new_base_is_written_when_the_deltas_have_paid_for_it() -> None:
    part = PartRef("x", 100)
    assert Chain().needs_base
    assert not Chain(1, (part,)).needs_base
    assert not Chain(1, (part,), (PartRef("y", 50),)).needs_base
    assert Chain(1, (part,), (PartRef("y", 30), PartRef("z", 21))).needs_base
    assert Chain(1, (PartRef("x", 10**9),), (part,) * 64).needs_base


def test_a_new_base_is_written_when_most_has_changed() -> None:
    state, stored = made(*(Set(f"v{n}", n) for n in range(1000))), Stored()
    stored.write(state)
    edit(state, *(Set(f"v{n}", -n) for n in range(500)))
    assert stored.write(state).chain.deltas
    edit(state, *(Set(f"v{n}", n) for n in range(501)))
    assert not stored.write(state).chain.deltas


def decide(state: ChangeSetState, count: int, *, forget_before_ms: int = 0) -> None:
    """Fold a commit that decides `count` requests, each of which sets the value `v`."""
    at = state.last + 1
    decisions = tuple(Decision(at, RequestId(f"r{at}-{n}"), Outcome.SUCCESS, n % 2) for n in range(count))
    commit = Commit("c", state.last, Kind.REBASE, at, "o", Applied("s", at), None, decisions, (Set("v", at),))
    state.fold(at, replace(commit, forget_before_ms=forget_before_ms))


def test_a_few_changes_in_many_values_are_a_delta_however_many_requests_there_were() -> None:
    state, stored = made(*(Set(f"v{n}", "x" * 500) for n in range(100))), Stored()
    stored.write(state)
    for _ in range(2):  # all outcomes are new in the first delta, and most in the second
        decide(state, 40)
        assert stored.write(state).chain.deltas
    assert parts(stored.read()) == parts(state)


def test_a_base_is_written_when_most_values_have_changed_although_some_outcomes_have_not() -> None:
    state, stored = made(*(Set(f"v{n}", n) for n in range(1000))), Stored()
    decide(state, 100)
    stored.write(state)
    edit(state, *(Set(f"v{n}", -n) for n in range(600)))
    assert not stored.write(state).chain.deltas


def test_no_base_repeats_the_outcomes_if_few_of_them_are_new() -> None:
    """A busy change set of one value has thousands of outcomes, which each base contains."""
    state, stored = ChangeSetState(), Stored()
    decide(state, 1000)
    assert not (base := stored.write(state)).chain.deltas
    decide(state, 100)
    (delta,) = stored.write(state).parts
    assert len(delta) < len(base.parts[0]) / 2
    decide(state, 90, forget_before_ms=2)
    assert len(stored.write(state).chain.deltas) == 2
    assert len(stored.read().outcomes) == 190
    assert parts(stored.read()) == parts(state)
    decide(state, 400)
    assert not stored.write(state).chain.deltas
    assert parts(stored.read()) == parts(state)


def test_an_outcome_is_written_alike_whether_it_is_packed_or_not() -> None:
    state = ChangeSetState()
    for at in range(1, 7):
        decision = Decision(at, RequestId(f"r{at}"), Outcome.SUCCESS, at % 2, digest=bytes([at] * 8) if at % 3 else b"")
        state.fold(at, Commit("c", at - 1, Kind.REBASE, at, "o", None, None, (decision,)))
    packed = written(state).parts
    for id_, outcome in list(state.outcomes.items()):
        assert isinstance(outcome, bytes)
        state.outcomes[id_] = unpack(id_, outcome)
    assert written(state).parts == packed


def test_what_was_not_stored_is_in_the_next_one() -> None:
    """These are changes from before the failure, and from while the checkpoint was written. Roots that are still owed
    are not stored twice."""
    state, stored = made(*(Set(f"v{n}", n) for n in range(30))), Stored()
    stored.write(state)
    edit(state, Set("v1", -1), Set("v7", -7), Remove("v2"))
    with state.view() as view:
        failed = CheckpointDraft(state, view, stored.chain)
        edit(state, Set("v3", -3), Remove("v5"))
        failed.copy()
    failed.write()
    edit(state, Set("v4", -4), Remove("v6"), Remove("v7"))
    failed.discard()
    compute(state)
    assert not state.owes
    assert {row["id"] for row in table(*stored.write(state).parts)} == {"v1", "v2", "v3", "v4", "v5", "v6", "v7"}
    assert parts(stored.read()) == parts(state)


def test_a_root_that_no_edit_touched_is_in_the_delta() -> None:
    """This happens after a recompute of everything."""
    state, stored = made(*(Set(f"v{n}", n) for n in range(10))), Stored()
    compute(state)
    stored.write(state)
    state.last += 1
    state.roots |= {"v5": state.last, "never": state.last}
    assert {row["id"]: row["root"] for row in table(*stored.write(state).parts)} == {"v5": 3, "never": 3}
    assert parts(stored.read()) == parts(state)


def test_a_large_part_is_several_files_whose_rows_are_counted_on() -> None:
    ring = [Derive(f"n{n}", "sum", {"values": (f"n{(n + 1) % 40}", f"n{n * 7 % 40}")}) for n in range(40)]
    state = made(*ring)
    with forced(Thresholds(part_rows=15, batch_rows=4)):
        files = written(state).parts
    assert [len(table(data)) for data in files] == [15, 15, 10]
    assert read_checkpoint(files[-1], files[:-1]).cells == state.cells
    for damaged in (files[1:], [files[0], files[2]], [files[0], *files], files[:2]):
        with pytest.raises(UnprocessableError):
            read_checkpoint(damaged[-1], damaged[:-1])


def test_the_next_batch_goes_into_another_file_once_a_file_has_its_bytes() -> None:
    state = made(*(Set(f"v{n}", n) for n in range(10)))
    with forced(Thresholds(part_bytes=0, batch_rows=4)):
        files = written(state).parts
    assert [len(table(data)) for data in files] == [4, 4, 2]
    assert read_checkpoint(files[-1], files[:-1]).cells == state.cells


def test_a_batch_is_bounded_in_inputs_and_text_too() -> None:
    state = made(*(Set(f"t{n}", "x" * 30) for n in range(8)), Derive("sum", "sum", {"values": ("t1",) * 50}))
    with forced(Thresholds(batch_bytes=70, batch_inputs=10)):
        (data,) = written(state).parts
    reader = pa.ipc.open_file(data)
    assert max(reader.get_batch(n).num_rows for n in range(reader.num_record_batches)) == 2
    assert read_checkpoint(data).cells == state.cells


def test_equal_formulas_are_one_object_in_memory() -> None:
    again = restored(made(*(Derive(f"n{n}", "cel", {"x": "a"}, {"expr": "x * 2"}) for n in range(3))))
    assert len({id(cell.definition.params) for cell in again.cells.values() if cell.definition}) == 1


def test_what_was_added_and_removed_while_a_view_was_open_needs_no_row() -> None:
    """The change set has no other values, so there are no rows at all."""
    state = ChangeSetState()
    with state.view():
        delta = (Set("a", 1), Remove("a"))
        state.fold(1, Commit("c", 0, Kind.REBASE, 1, "o", None, 0, delta=delta))
    assert restored(state).roots == state.roots


def test_the_first_checkpoint_of_a_change_set_has_the_outcomes_it_carried_and_none_of_its_parent() -> None:
    stored, parent = Stored(), ChangeSetState()
    theirs, mine = (Decision(1, RequestId(name), Outcome.ERROR, 0, "no") for name in ("theirs", "mine"))
    updates = tuple(Set(f"v{number}", number) for number in range(20))
    parent.fold(5, Commit("c", 0, Kind.REBASE, 0, "o", None, None, (theirs,), updates), 100)
    stored.write(parent)
    origin = Origin("main", 5, "main", 5)
    carried = (CarriedOutcome(mine, 3, 0),)
    parent.fold(9, Commit("c", 3, Kind.CREATE, 0, "o", Applied("s", 2), None, origin=origin, carried=carried), 7)
    assert parent.weight == 7  # the weight of its own log
    made = stored.write(parent)
    assert len(made.chain.deltas) == 1
    assert list(stored.read().outcomes) == ["mine"]
