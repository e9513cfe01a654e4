"""Requests that share a commit are decided as if each had its own, and each commit names the blob of its own
request."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.commit import Applied, BlobRef, Commit, Decision, Kind
from rebaser_core.decisions.decide import decide
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.errors import UnprocessableError
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Recompute, Remove, Set, Update
from rebaser_core.values import canonical
from tests.support.random_input import examples

FLOOR = 2  # the sequence up to which requests are decided at the start

# Few of everything, so that requests concern the same values.
ids = st.sampled_from("xxxy")
updates: st.SearchStrategy[Update] = st.one_of(
    st.builds(Set, ids, st.integers(0, 1)),
    st.builds(Remove, ids),
    st.builds(Remove, ids),
    st.builds(lambda id_: Derive(id_, "sum", {"a": "z"}), ids),
)
some = st.lists(updates, min_size=1, max_size=2).map(tuple)
good = st.builds(
    lambda request_id, edits, source: QueuedRequest(0, request_id, edits, source),
    *(st.sampled_from("abcdefgh"), some, st.sampled_from([None, "other"])),
)
bad = st.builds(
    lambda request_id, redrive: QueuedRequest(0, request_id, error=UnprocessableError("no"), redrive=redrive),
    *(st.sampled_from("ab"), st.integers(0, 1)),
)
redriven = st.builds(
    lambda request_id, redrive, edits: QueuedRequest(0, request_id, edits, redrive=redrive),
    *(st.sampled_from("ab"), st.integers(0, 2), some),
)
asking = st.builds(
    lambda request_id, function, edits: QueuedRequest(0, request_id, edits, recompute=Recompute(function)),
    *(st.sampled_from("abcd"), st.sampled_from(["sum", "max", None]), st.just(()) | some),
)
requests = st.one_of(good, good, good, bad, redriven, asking)


def one_by_one(batches: list[list[QueuedRequest]], stood: list[Update]) -> tuple[ChangeSetState, list[Decision]]:
    """Return the state that the log gives if each batch is a commit, and the decisions."""
    state, answers, epoch = ChangeSetState(), [], Applied("created", FLOOR)
    blobs = {one.blob: one.updates for batch in batches for one in batch}
    state.fold(1, Commit("c", 0, Kind.REBASE, 0, "o", epoch, None, delta=tuple(stood)))
    for batch in batches:
        decided = decide(state, epoch, batch)
        answers += [decision for decision, _ in decided.answers]
        assert len(decided.answers) == len(batch)
        if decided.decisions:
            epoch = decided.applied
            if decided.delta_blob is not None:
                assert blobs[decided.delta_blob] == decided.delta, "readers find the delta of another commit"
            made = Commit(
                *("c", state.last, Kind.REBASE, 0, "o", epoch, 0),
                requests=decided.decisions,
                delta=decided.delta,
                recompute=decided.recompute,
            )
            state.fold(state.last + 1, made)
    return state, answers


@examples(5)
@given(
    st.lists(updates, max_size=3),
    st.lists(st.tuples(requests, st.booleans()), min_size=2, max_size=8),
    st.integers(1, FLOOR + 1),
    st.integers(0, 4),
)
def test_requests_of_one_commit_are_decided_as_one_by_one(
    stood: list[Update], drawn: list[tuple[QueuedRequest, bool]], first: int, cut: int
) -> None:
    asked = [
        replace(one, sequence=at, blob=BlobRef(f"blob {at}", 1) if in_blob and one.error is None else None)
        for at, (one, in_blob) in enumerate(drawn, first)
    ]
    together, answers = one_by_one([asked[:cut], asked[cut:]], stood)
    apart, expected = one_by_one([[one] for one in asked], stood)
    assert answers == expected
    assert together.applied == apart.applied
    # A recompute of everything includes it.
    assert set(together.recompute) - {Recompute("sum")} == set(apart.recompute) - {Recompute("sum")}
    assert together.roots.keys() == apart.roots.keys()
    assert {id_: (canonical(cell.value), cell.state, cell.definition) for id_, cell in together.cells.items()} == {
        id_: (canonical(cell.value), cell.state, cell.definition) for id_, cell in apart.cells.items()
    }
    for kept in ("outcomes", "redriven"):
        assert {one.decision.request_id: one.decision for one in getattr(together, kept).unpacked()} == {
            one.decision.request_id: one.decision for one in getattr(apart, kept).unpacked()
        }
