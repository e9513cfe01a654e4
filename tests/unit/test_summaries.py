"""The header `X-Summary` of commits: it names the server, and counts the errors as the folded state will have them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser.change_set.log.summaries import Summaries
from rebaser_core.commit import Applied, BranchStatus, Commit, Computed, Delta, Kind, Marking
from rebaser_core.encoding.envelope import SUMMARY
from rebaser_core.messages import read_summary, write_summary
from rebaser_core.messages.headers.summary import Summary
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.kinds import INT, NULL
from rebaser_core.state.overlay import Cells
from rebaser_core.state.view import View
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Remove, Set, Unset
from rebaser_core.values import Fault, State
from tests.support.forcing import forcing
from tests.support.random_input import examples

IS_ERROR = Cells.is_error
FAULT = Fault("failed", "no", "a")
ids = st.sampled_from("abcd")
edits = st.one_of(
    st.builds(Set, ids, st.integers(0, 3)),
    st.builds(Unset, ids),
    st.builds(Remove, ids),
    st.builds(lambda id_, one: Derive(id_, "sum", {"x": one}), ids, ids),
)
results = st.dictionaries(ids, st.booleans(), min_size=1)
steps = st.one_of(st.lists(edits, min_size=1, max_size=6), results, results, st.sampled_from(["view", "close"]))


def commit(state: ChangeSetState, kind: Kind, delta: Delta = (), marking: Marking | None = None) -> Commit:
    return Commit("c", state.last, kind, 0, "o", Applied("s", 1), None, delta=delta, marking=marking)


def table_of(state: ChangeSetState, fails: dict[str, bool]) -> ComputedTable:
    """Return the results of an update: those of the derived values among `fails` that exist."""
    names = [id_ for id_ in fails if state.cells.is_derived(id_)]
    kinds = np.array([NULL if fails[id_] else INT for id_ in names], np.uint8)
    faults = {place: FAULT for place, id_ in enumerate(names) if fails[id_]}
    columns = state.cells.columns
    found = [columns.find(id_) for id_ in names]  # a value that is new in the overlay has no row
    rows = np.array(found, np.int32) if min(found, default=0) >= 0 else None
    bits = np.zeros(len(names), np.int64)
    return ComputedTable(names, kinds, bits, {}, faults, rows, columns if rows is not None else None)


@pytest.mark.anyio
@examples(3)
@given(st.lists(steps, min_size=5, max_size=25), forcing())
async def test_the_errors_are_those_of_the_state_after_the_commit(script: list[object], limits: Thresholds) -> None:
    with forced(limits):
        state, summaries = ChangeSetState(), Summaries("r-0")
        views: list[View] = []
        for step in script:
            if step == "view":
                if not views and state.cells.overlay_empty:
                    views.append(state.view())
            elif step == "close":
                while views:
                    views.pop().close()
            else:
                if isinstance(step, dict):
                    written = commit(state, Kind.DVU, table_of(state, step))
                else:
                    written = commit(state, Kind.REBASE, tuple(step))  # type: ignore[arg-type]
                header = await summaries.header(state, written)
                state.fold(state.last + 1, written)
                errors = sum(value.state is State.ERROR for _, value in state.cells.iter_values())
                assert read_summary(header) == Summary("r-0", errors)


@pytest.mark.anyio
@pytest.mark.parametrize("edited", [0, 3, 4])
async def test_only_what_was_edited_meanwhile_is_looked_at_unless_that_is_much(
    monkeypatch: pytest.MonkeyPatch, edited: int
) -> None:
    names, looked = [f"v{number}" for number in range(40)], list[str]()
    state, summaries = ChangeSetState(), Summaries("r-0")
    state.fold(1, commit(state, Kind.REBASE, tuple(Derive(name, "sum", {"x": "a"}) for name in names)))
    state.fold(2, commit(state, Kind.DVU, table_of(state, dict.fromkeys(names, True))))

    def is_error(cells: Cells, id_: str) -> bool:
        looked.append(id_)
        return IS_ERROR(cells, id_)

    monkeypatch.setattr(Cells, "is_error", is_error)
    with forced(Thresholds(fold_step=3)), state.view():
        state.fold(3, commit(state, Kind.REBASE, tuple(Derive(name, "sum", {"x": "b"}) for name in names[:edited])))
        table = table_of(state, dict.fromkeys(names[2:], False))
        assert table.rows is not None
        looked.clear()
        assert read_summary(await summaries.header(state, commit(state, Kind.DVU, table))).errors == max(2 - edited, 0)
    assert len(looked) == (38 if edited > 3 else max(edited - 2, 0))


@pytest.mark.anyio
async def test_a_commit_that_replaces_the_state_leaves_the_errors_open() -> None:
    state, summaries = ChangeSetState(), Summaries("r-0")
    state.fold(1, commit(state, Kind.REBASE, (Derive("b", "sum", {"x": "a"}),)))
    state.fold(2, commit(state, Kind.DVU, (Computed("b", None, FAULT),)))
    checkpoint = commit(state, Kind.CHECKPOINT)
    assert await summaries.header(state, checkpoint) == {SUMMARY: "errors=1 owner=r-0"}
    deletion = commit(state, Kind.MARK, marking=Marking(status=BranchStatus.DELETED))
    assert await summaries.header(state, deletion) == {SUMMARY: "owner=r-0"}
    assert await summaries.header(state, checkpoint) == {SUMMARY: "errors=1 owner=r-0"}


@pytest.mark.parametrize("owner", ["r-0", "a b=c\r\nX-Evil: 1", "ü" * 20, "%41", ""])
@pytest.mark.parametrize("errors", [None, 0, 12, 10**19 - 1])
def test_a_summary_is_read_as_it_was_written(owner: str, errors: int | None) -> None:
    text = write_summary(owner, errors)
    assert len(f"{SUMMARY}: {text}") <= 256
    assert text.isascii()
    assert text.isprintable()
    assert read_summary({SUMMARY: text}) == Summary(owner, errors)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "=",
        "errors",
        "errors=",
        "errors=-1",
        "errors=1e3",
        "errors=²",
        "errors=" + "9" * 5000,
        "owner",
        "x=1 y",
    ],
)
def test_a_damaged_or_missing_summary_says_nothing(text: str) -> None:
    assert read_summary({SUMMARY: text}) == Summary("", None)
    assert read_summary({}) == read_summary(None) == Summary("", None)


def test_a_name_that_is_too_long_is_left_out() -> None:
    assert write_summary("ü" * 40, 3) == "errors=3"
    assert read_summary({SUMMARY: f"errors=3 later=x owner={'a' * 5000}"}) == Summary("", 3)
