"""Tests what becomes of queued requests: each is applied once, answered again, or dead, but never ignored."""

from dataclasses import replace
from typing import Any

import pytest

from rebaser_core.branches.merge import Merged, PatchEntry
from rebaser_core.commit import Applied, Authorship, BlobRef, Commit, Computed, Kind, Outcome, Reverts
from rebaser_core.decisions.decide import DecidedBatch, decide, decided_through
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.encoding.envelope import MESSAGE_VERSION
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.messages import Conflict, Conflicts, EnqueueUpdatesResponse, encode
from rebaser_core.response import Sides
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Recompute, Remove, Set, Unset, Update

EPOCH = Applied("created", 0)


def commit(state: ChangeSetState, decided: DecidedBatch) -> ChangeSetState:
    """Fold the decisions as the log would."""
    state.fold(
        state.last + 1,
        Commit(
            "c", state.last, Kind.REBASE, 0, "o", decided.applied, None, requests=decided.decisions, delta=decided.delta
        ),
    )
    return state


def ask(sequence: int, request_id: str, *updates: Update, source: str | None = None) -> QueuedRequest:
    return QueuedRequest(sequence, RequestId(request_id), updates, source)


def test_requests_are_applied_in_order_and_share_a_commit() -> None:
    decided = decide(ChangeSetState(), EPOCH, [ask(4, "a", Set("x", 1)), ask(7, "b", Set("x", 2))])
    assert decided.delta == (Set("x", 1), Set("x", 2))
    assert [(one.sequence, one.outcome) for one in decided.decisions] == [(4, Outcome.SUCCESS), (7, Outcome.SUCCESS)]
    assert decided.applied == Applied("created", 7)


def test_a_delta_stands_in_the_blob_of_a_request_only_if_it_is_all_of_it() -> None:
    blob = BlobRef("sha256:" + "0" * 64, 10)
    first = replace(ask(1, "r1", Set("a", 1)), blob=blob)
    epoch = Applied("s", 0)
    assert decide(ChangeSetState(), epoch, [first]).delta_blob == blob
    assert decide(ChangeSetState(), epoch, [first, ask(2, "r2", Set("b", 2))]).delta_blob is None


def test_a_known_id_is_answered_with_its_outcome_and_not_applied() -> None:
    state = commit(ChangeSetState(), decide(ChangeSetState(), EPOCH, [ask(4, "a", Set("x", 1))]))
    again = decide(state, state.applied or EPOCH, [ask(9, "a", Set("x", 5))])
    assert (again.decisions, again.delta) == ((), ())
    assert again.answers[0][0].outcome is Outcome.SUCCESS
    assert again.answers[0][1] == 1


def test_what_was_applied_is_answered_as_applied_though_it_would_be_refused_today() -> None:
    state = commit(ChangeSetState(), decide(ChangeSetState(), EPOCH, [ask(4, "a", Set("x", 1))]))
    refused = UnprocessableError("update 0 of 'x': no", code="invalid_definition")
    again = decide(state, state.applied or EPOCH, [QueuedRequest(9, RequestId("a"), error=refused, digest=b"")])
    assert again.decisions == ()
    assert again.answers[0][0].outcome is Outcome.SUCCESS


def test_a_refused_request_can_be_tried_anew_from_the_dead_letters() -> None:
    refused = QueuedRequest(4, RequestId("a"), error=UnprocessableError("no", code="invalid_definition"), digest=b"1")
    state = commit(ChangeSetState(), decide(ChangeSetState(), EPOCH, [refused]))
    anew = replace(ask(9, "a", Set("x", 1)), redrive=1, digest=b"1")  # sent by a release that records digests
    assert decide(state, state.applied or EPOCH, [anew]).delta == (Set("x", 1),)


def test_the_same_id_twice_in_one_batch_is_applied_once() -> None:
    decided = decide(ChangeSetState(), EPOCH, [ask(1, "a", Set("x", 1)), ask(2, "a", Set("x", 1))])
    assert len(decided.decisions) == 1
    assert decided.answers[0] == decided.answers[1]


def test_a_known_id_with_other_content_is_refused_and_each_gets_its_own_answer_again() -> None:
    def asked(sequence: int, value: int, digest: bytes) -> QueuedRequest:
        return QueuedRequest(sequence, RequestId("a"), (Set("x", value),), digest=digest)

    one, other = bytes(7) + b"1", bytes(7) + b"2"
    first = decide(ChangeSetState(), EPOCH, [asked(4, 1, one), asked(5, 2, other), asked(6, 1, one)])
    outcomes = [(decision.outcome, decision.code) for decision, _ in first.answers]
    success, refused = (Outcome.SUCCESS, ""), (Outcome.DEAD, "request_id_reused")
    assert outcomes == [success, refused, success]
    assert (len(first.decisions), first.delta) == (1, (Set("x", 1),))
    state = commit(ChangeSetState(), first)
    for _ in range(2):
        again = decide(state, state.applied or EPOCH, [asked(7, 2, other), asked(8, 1, one), asked(9, 3, b"")])
        assert [(decision.outcome, decision.code) for decision, _ in again.answers] == [refused, success, success]
        assert (again.decisions, again.delta) == ((), ())
        assert [at for _, at in again.answers] == [1, 1, 1]


@pytest.mark.parametrize("sequence", [9, 10])
def test_a_sequence_up_to_applied_without_an_outcome_is_dead_not_applied(sequence: int) -> None:
    decided = decide(ChangeSetState(), Applied("created", 10), [ask(sequence, "late", Set("x", 1))])
    assert decided.delta == ()
    assert (decided.decisions[0].outcome, decided.decisions[0].code) == (Outcome.DEAD, "skipped")
    assert decided.applied.sequence == 10
    assert decided.skipped == 1


@pytest.mark.parametrize(
    ("asked", "outcome", "code", "attempts"),
    [
        ({"updates": (Set("x", 1),)}, Outcome.SUCCESS, "", 0),
        ({"updates": (Remove("x"),), "from_change_set": "other"}, Outcome.CONFLICTS, "conflicts", 0),
        ({"recompute": Recompute()}, Outcome.ERROR, "nothing_to_recompute", 0),
        ({"refusal": UnprocessableError("gone", code="purged")}, Outcome.ERROR, "purged", 0),
        ({"error": UnprocessableError("no", code="malformed")}, Outcome.DEAD, "malformed", 3),
        ({"updates": (Set("x", 1),), "sequence": 10}, Outcome.DEAD, "skipped", 0),
    ],
)
def test_whatever_becomes_of_a_request_its_decision_says_which_one_it_was(
    asked: dict[str, Any], outcome: Outcome, code: str, attempts: int
) -> None:
    """These fields identify later copies of the request."""
    request = replace(QueuedRequest(11, RequestId("r"), redrive=2, digest=b"12345678", attempts=3), **asked)
    (decision,) = decide(ChangeSetState(), Applied("created", 10), [request]).decisions
    assert (decision.outcome, decision.code, decision.attempts) == (outcome, code, attempts)
    assert (decision.sequence, decision.request_id) == (request.sequence, request.request_id)
    assert (decision.redrive, decision.digest) == (request.redrive, request.digest)


def dead(sequence: int, request_id: str, redrive: int = 0) -> QueuedRequest:
    return QueuedRequest(
        sequence, RequestId(request_id), error=UnprocessableError("no", code="malformed"), redrive=redrive
    )


def redriven(sequence: int, request_id: str, redrive: int) -> QueuedRequest:
    return QueuedRequest(sequence, RequestId(request_id), (Set("x", sequence),), redrive=redrive)


def test_a_dead_request_sent_again_by_its_client_is_answered_and_not_tried_again() -> None:
    state = commit(ChangeSetState(), decide(ChangeSetState(), EPOCH, [dead(1, "a")]))
    for again in (dead(1, "a"), dead(2, "a"), ask(2, "a", Set("x", 1)), redriven(1, "a", 1)):
        decided = decide(state, Applied("created", 1), [again])
        assert (decided.decisions, decided.delta, decided.answers[0][0].code) == ((), (), "malformed")


def test_a_dead_request_that_comes_back_from_the_dead_letters_is_tried_anew() -> None:
    state = commit(ChangeSetState(), decide(ChangeSetState(), EPOCH, [dead(1, "a")]))
    state = commit(state, decide(state, Applied("created", 1), [dead(2, "a", 1)]))
    recorded = state.redriven.of(RequestId("a"))
    assert state.recorded(RequestId("a")) == recorded
    assert (recorded.decision.outcome, recorded.decision.redrive) == (Outcome.DEAD, 1)
    same = decide(state, Applied("created", 2), [redriven(3, "a", 1)])
    assert same.decisions == ()
    twice = decide(state, Applied("created", 2), [redriven(3, "a", 2), redriven(4, "a", 3)])
    assert [(one.outcome, one.redrive) for one in twice.decisions] == [(Outcome.SUCCESS, 2)]
    assert twice.delta == (Set("x", 3),)


def test_a_request_that_was_applied_is_never_redriven() -> None:
    state = commit(ChangeSetState(), decide(ChangeSetState(), EPOCH, [ask(1, "a", Set("x", 1))]))
    assert decide(state, Applied("created", 1), [redriven(2, "a", 9)]).decisions == ()


def test_a_redrive_behind_the_death_it_answers_in_one_batch() -> None:
    decided = decide(ChangeSetState(), EPOCH, [dead(1, "a", 1), redriven(2, "a", 1), redriven(3, "a", 2)])
    assert [(one.sequence, one.outcome) for one in decided.decisions] == [(1, Outcome.DEAD), (3, Outcome.SUCCESS)]
    assert [answer.sequence for answer, _ in decided.answers] == [1, 1, 3]


def test_a_bad_request_takes_no_neighbour_along() -> None:
    bad = QueuedRequest(2, RequestId("@2"), error=UnprocessableError("bad bytes", code="malformed"))
    decided = decide(ChangeSetState(), EPOCH, [ask(1, "a", Set("x", 1)), bad, ask(3, "c", Set("y", 1))])
    assert [one.outcome for one in decided.decisions] == [Outcome.SUCCESS, Outcome.DEAD, Outcome.SUCCESS]
    assert decided.delta == (Set("x", 1), Set("y", 1))


def test_edits_of_another_change_set_conflict_where_what_they_remove_is_gone() -> None:
    here = decide(ChangeSetState(), EPOCH, [ask(1, "a", Remove("x"))])
    assert here.decisions[0].outcome is Outcome.SUCCESS
    decided = decide(
        ChangeSetState(),
        EPOCH,
        [
            ask(1, "a", Set("x", 1)),
            ask(2, "b", Remove("x"), source="other"),
            ask(3, "c", Set("z", 1), Remove("x"), source="other"),
        ],
    )
    assert [one.outcome for one in decided.decisions] == [Outcome.SUCCESS, Outcome.SUCCESS, Outcome.CONFLICTS]
    assert decided.decisions[2].message == "the values to remove do not exist in this change set: x"
    assert decided.delta == (Set("x", 1), Remove("x"))


def test_edits_of_another_change_set_may_remove_what_they_made_themselves() -> None:
    made: list[tuple[Update, ...]] = [(Set("x", 1),), (Unset("x"),), (Derive("x", "sum", {"a": "z"}),)]
    requests = [ask(at, f"r{at}", *edits, Remove("x"), source="other") for at, edits in enumerate(made, 1)]
    decided = decide(ChangeSetState(), EPOCH, requests)
    assert [one.outcome for one in decided.decisions] == [Outcome.SUCCESS] * 3
    twice = ask(1, "a", Set("x", 1), Remove("x"), Remove("x"), source="other")
    assert [one.outcome for one in decide(ChangeSetState(), EPOCH, [twice]).decisions] == [Outcome.CONFLICTS]


def test_another_stream_or_one_that_went_back_is_a_new_epoch() -> None:
    state = ChangeSetState()
    assert decided_through(state, "s", 100) == 0
    state.applied = Applied("s", 50)
    assert decided_through(state, "s", 100) == 50
    assert decided_through(state, "s", 50) == 50
    assert decided_through(state, "s", 49) == 0
    assert decided_through(state, "t", 100) == 0


def test_what_is_to_be_recomputed_goes_into_the_commit_once() -> None:
    state = ChangeSetState()
    asked = [
        QueuedRequest(1, RequestId("a"), (Derive("b", "sum", {"x": "a"}),)),
        QueuedRequest(2, RequestId("b"), recompute=Recompute("sum")),
        QueuedRequest(3, RequestId("c"), (Set("a", 1),), recompute=Recompute("sum")),
        QueuedRequest(4, RequestId("b"), recompute=Recompute("sum")),
    ]
    decided = decide(state, EPOCH, asked)
    assert [one.outcome for one in decided.decisions] == [Outcome.SUCCESS] * 3
    assert decided.recompute == (Recompute("sum"),)
    assert len(decided.delta) == 2


@pytest.mark.parametrize("asked", [Recompute(), Recompute("sum")])
def test_where_nothing_is_derived_nothing_is_recomputed_and_the_answer_says_so(asked: Recompute) -> None:
    state = commit(ChangeSetState(), decide(ChangeSetState(), EPOCH, [ask(1, "a", Set("x", 1))]))
    [decision] = decide(state, EPOCH, [QueuedRequest(2, RequestId("r"), (Set("y", 1),), recompute=asked)]).decisions
    assert (decision.outcome, decision.code, decision.performed) == (Outcome.ERROR, "nothing_to_recompute", 0)
    assert ("'sum'" in decision.message) is (asked.function is not None)
    itself = QueuedRequest(3, RequestId("s"), (Derive("y", "sum", {"x": "x"}),), recompute=asked)
    assert decide(state, EPOCH, [itself]).recompute == (asked,)


def test_a_refused_request_recomputes_nothing() -> None:
    state = commit(
        ChangeSetState(), decide(ChangeSetState(), EPOCH, [QueuedRequest(1, RequestId("a"), (Derive("b", "sum", {}),))])
    )
    stray = QueuedRequest(2, RequestId("r"), (Remove("nothing"),), "other", recompute=Recompute())
    decided = decide(state, EPOCH, [stray])
    assert (decided.decisions[0].outcome, decided.recompute, decided.delta) == (Outcome.CONFLICTS, (), ())


# -- expectations, authors and reverts --------------------------------------------------------------------------------


def defined(*deltas: tuple[Update, ...]) -> ChangeSetState:
    """Return a state after commits 1, 2, … with these deltas."""
    state = ChangeSetState()
    for at, delta in enumerate(deltas, 1):
        state.fold(at, Commit("c", at - 1, Kind.REBASE, 0, "o", None, 0, delta=delta))
    return state


def outcome_of(state: ChangeSetState, *requests: QueuedRequest) -> list[tuple[Outcome, str]]:
    return [(decision.outcome, decision.code) for decision in decide(state, EPOCH, requests).decisions]


SUCCESS, MOVED = (Outcome.SUCCESS, ""), (Outcome.ERROR, "moved")


@pytest.mark.parametrize(
    ("update", "known_at"),
    [
        (Set("old", 5), 1),
        (Set("new", 5), 2),
        (Remove("new"), 2),
        (Set("gone", 5), 3),
        (Set("never", 5), 3),
        (Derive("computed", "sum", {"x": "old"}), 1),
    ],
)
def test_an_edit_is_refused_if_its_id_was_defined_after_what_its_author_saw(update: Update, known_at: int) -> None:
    """Nothing records when an id was removed. So for an id that does not exist, the newest edit of the change set
    counts."""
    state = defined(
        (Set("old", 1), Set("gone", 1), Derive("computed", "sum", {"x": "gone"})), (Set("new", 1),), (Remove("gone"),)
    )
    state.fold(4, Commit("d", 3, Kind.DVU, 0, "o", None, None, delta=(Computed("computed", 1),)))
    for at in range(5):
        request = QueuedRequest(5, RequestId("r"), (Set("other", 0), update), expect_at=at)
        assert outcome_of(state, replace(request, updates=(update,))) == [SUCCESS if at >= known_at else MOVED]
    assert outcome_of(state, QueuedRequest(5, RequestId("r"), (update,))) == [SUCCESS]


def test_an_earlier_request_of_the_same_commit_is_later_than_any_position() -> None:
    state = defined((Set("a", 1), Set("b", 1)))
    first = QueuedRequest(1, RequestId("1"), (Set("a", 2), Remove("b")))
    for update in (Set("a", 3), Set("b", 3)):
        second = QueuedRequest(2, RequestId("2"), (update,), expect_at=10**6)
        assert outcome_of(state, first, second) == [SUCCESS, MOVED]
        assert outcome_of(state, replace(first, error=UnprocessableError("no")), second)[1] == SUCCESS
    third = QueuedRequest(3, RequestId("3"), (Set("c", 3),), expect_at=1)
    refused = QueuedRequest(2, RequestId("2"), (Set("a", 3), Set("c", 1)), expect_at=1)
    assert outcome_of(state, first, refused, third) == [SUCCESS, MOVED, SUCCESS]


def test_authors_stand_beside_their_requests() -> None:
    def asked(sequence: int, author: str = "", message: str = "") -> QueuedRequest:
        return QueuedRequest(sequence, RequestId(f"r{sequence}"), (), author=author, message=message)

    state = ChangeSetState()
    assert decide(state, EPOCH, [asked(1), asked(2)]).authors == ()
    found = decide(state, EPOCH, [asked(1), asked(2, "ann"), asked(3), asked(4, "", "why"), asked(5)]).authors
    assert found == (Authorship(), Authorship("ann"), Authorship(), Authorship("", "why"), Authorship())
    known = decide(state, EPOCH, [asked(1)])
    state.fold(1, Commit("c1", 0, Kind.REBASE, 0, "s", known.applied, None, requests=known.decisions))
    found = decide(state, known.applied, [asked(1, "ann"), asked(2), asked(3, "bob"), asked(4)]).authors
    assert found == (Authorship(), Authorship("bob"), Authorship()), "the first request was decided before"


def reverting(here: ChangeSetState, *patch: PatchEntry) -> QueuedRequest:
    merged = Merged()
    merged.add(here.cells.edit_of, patch)
    return QueuedRequest(1, RequestId("r"), action=Reverts(1, 2), patch=patch, merged=merged)


def test_a_revert_takes_all_or_nothing() -> None:
    state = defined((Set("a", 1), Set("b", 2)))
    back = PatchEntry("a", Set("a", 1), None)
    found = decide(state, EPOCH, [reverting(state, back)])
    assert (found.delta, found.reverts, found.decisions[0].performed) == ((Remove("a"),), Reverts(1, 2), 1)
    found = decide(state, EPOCH, [reverting(state, back, PatchEntry("b", Set("b", 1), None))])
    (decision,) = found.decisions
    assert (found.delta, found.reverts, decision.performed, decision.outcome) == ((), None, 0, Outcome.CONFLICTS)
    sides = Sides(Set("b", 1), Set("b", 2), None)
    assert decision.conflicts == (Conflict("b", "edited again since", sides),)


def test_a_revert_names_the_position_that_it_is_based_on_like_any_edit() -> None:
    state = defined((Set("a", 1),), (Set("b", 2),))
    asked = reverting(state, PatchEntry("b", Set("b", 2), None))
    assert outcome_of(state, replace(asked, expect_at=2)) == [SUCCESS]
    assert outcome_of(state, replace(asked, expect_at=1)) == [MOVED]


def test_a_reply_shows_what_fits_of_the_conflicts() -> None:
    long = "x" * 30_000
    state = defined(tuple(Set(f"v{n}", long * 3 if n == 2 else long if n == 1 else n) for n in range(150)))
    patch = [PatchEntry(f"v{n}", Set(f"v{n}", long), None) for n in range(150) if n not in (1, 2)]
    patch.insert(0, PatchEntry("v1", Set("v1", 1), None))
    patch.insert(0, PatchEntry("v2", Set("v2", long), None))
    (decision,) = decide(state, EPOCH, [reverting(state, *patch)]).decisions
    assert len(decision.conflicts) == 100
    shown = [one.id for one in decision.conflicts if one.sides is not None]
    assert shown == ["v1", "v0"]
    headers, payload = encode(EnqueueUpdatesResponse(RequestId("r"), "w", "c", Conflicts("", 1, decision.conflicts)))
    assert headers[MESSAGE_VERSION] == "2"
    assert len(payload) < 80_000


def test_a_revert_that_cannot_be_done_leaves_no_dead_letter() -> None:
    refusal = UnprocessableError("gone", code="purged")
    request = QueuedRequest(1, RequestId("r"), action=Reverts(1, 2), merged=Merged(), refusal=refusal)
    assert outcome_of(ChangeSetState(), request) == [(Outcome.ERROR, "purged")]
