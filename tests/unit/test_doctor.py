"""Tests what is reported about damaged commits, and the state that a log gives without them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser.doctor.history import Cost, History
from rebaser.doctor.log_message import Classification, LogMessage, classify_message
from rebaser_core.branches.branch import Branch
from rebaser_core.commit import Applied, CheckpointRef, Commit, Computed, Decision, Kind, Outcome, Replay, Source
from rebaser_core.encoding.envelope import APPLIED, CONTENT_TYPE, DEBT, MESSAGE_TYPE, MESSAGE_VERSION
from rebaser_core.encoding.payload import JSON, ContentType
from rebaser_core.ids import RequestId
from rebaser_core.messages import encode_commit
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Recompute, Remove, Set, Update
from tests.support.example_messages import create

ADDRESS = f"sha256:{'0' * 64}"
QUEUE = Applied("epoch", 100)


def rebase(number: int, previous: int, applied: int, *updates: Update, outcome: Outcome = Outcome.SUCCESS) -> Commit:
    """Return a commit that decides request `applied`."""
    decision = Decision(applied, RequestId(f"r{applied}"), outcome, len(updates))
    reached = Applied("epoch", applied)
    return Commit(f"c{number}", previous, Kind.REBASE, 7, "owner", reached, 0, (decision,), updates)


def dvu(number: int, previous: int, applied: int, *found: Computed) -> Commit:
    return Commit(f"c{number}", previous, Kind.DVU, 7, "owner", Applied("epoch", applied), previous, delta=found)


# The values b and c are both derived from a.
LOG: dict[int, Commit] = {
    10: rebase(10, 0, 1, Set("a", 1), Derive("b", "sum", {"of": "a"})),
    12: dvu(12, 10, 1, Computed("b", 1)),
    13: rebase(13, 12, 2, Set("a", 2), Derive("c", "sum", {"of": "a"})),
    20: dvu(20, 13, 2, Computed("b", 2), Computed("c", 2)),
    21: rebase(21, 20, 3, Set("x", 3)),
    22: dvu(22, 21, 3),
}


def entry(sequence: int, commit: Commit, **headers: str | None) -> LogMessage:
    """Return the commit as a message of the log. `headers` are set, or removed if None."""
    given, data = encode_commit(commit)
    return classify_message(sequence, 0, changed(given, headers), data)


def damaged(sequence: int, commit: Commit, **headers: str | None) -> LogMessage:
    """Return the message with an unreadable payload."""
    found = classify_message(sequence, 0, changed(encode_commit(commit)[0], headers), b"\xff")
    assert found.classification is Classification.DAMAGED
    return found


def changed(given: dict[str, str], by: dict[str, str | None]) -> dict[str, str]:
    names = {"applied": APPLIED, "debt": DEBT}
    all_ = given | {names[name]: text for name, text in by.items()}
    return {name: text for name, text in all_.items() if text is not None}


def folded(*entries: LogMessage) -> History:
    history = History(ChangeSetState(), QUEUE, {})
    for one in entries:
        if one.classification is Classification.DAMAGED:
            history.damaged(one)
        elif one.classification is Classification.FOREIGN:
            history.foreign(one)
        else:
            history.commit(one, one.decode_full())
    history.finish()
    return history


def log(**damage: LogMessage | None) -> list[LogMessage]:
    """Return `LOG` with some of its messages damaged (`s13=…`) or missing (None)."""
    entries = {sequence: entry(sequence, commit) for sequence, commit in LOG.items()}
    for name, one in damage.items():
        entries.pop(int(name[1:]), None)
        if one is not None:
            entries[int(name[1:])] = one
    return [entries[sequence] for sequence in sorted(entries)]


def costs(history: History) -> list[tuple[int, Cost]]:
    return [(finding.sequence, finding.cost) for finding in history.findings]


def test_a_whole_log_folds_as_for_every_reader() -> None:
    state = ChangeSetState()
    for sequence, commit in LOG.items():
        state.fold(sequence, commit)
    history = folded(*log())
    assert history.findings == []
    assert history.intact_until == 22
    assert vars(history.state) | {"cells": 0} == vars(state) | {"cells": 0}
    assert history.state.cells == state.cells


@pytest.mark.parametrize(
    ("sequence", "values", "outcomes"),
    [
        (10, {"a", "c", "x"}, {"r2", "r3"}),
        (12, {"a", "b", "c", "x"}, {"r1", "r2", "r3"}),
        (13, {"a", "b", "x"}, {"r1", "r3"}),
        (20, {"a", "b", "c", "x"}, {"r1", "r2", "r3"}),
        (21, {"a", "b", "c"}, {"r1", "r2"}),
    ],
)
@pytest.mark.parametrize("gone", [False, True])
def test_one_commit_less_loses_its_edits_and_no_others(
    sequence: int, values: set[str], outcomes: set[str], gone: bool
) -> None:
    history = folded(*log(**{f"s{sequence}": None if gone else damaged(sequence, LOG[sequence])}))
    state = history.state
    assert (set(state.cells), set(state.outcomes)) == (values, outcomes)
    assert (state.last, state.applied) == (22, Applied("epoch", 3))
    edits = LOG[sequence].kind is Kind.REBASE
    # The commit after a missing update decides a request itself.
    assert costs(history) == [(sequence, Cost.EDITS if edits else Cost.UNKNOWN if gone else Cost.NOTHING)]
    assert (state.stale(), state.covers) == (values & {"b", "c"}, 0)


def test_a_damaged_create_commit_costs_what_was_inherited() -> None:
    """This is also so if the message is cut off, so that only its kind is readable."""
    created = create()
    headers, payload = encode_commit(created)
    for data in (payload[:-1], payload[: len(payload) * 2 // 3]):
        message = classify_message(10, 0, headers, data)
        assert message.summary().kind is Kind.CREATE
        assert costs(folded(message)) == [(10, Cost.EDITS)]


def test_a_branch_whose_edits_are_lost_can_be_applied_again() -> None:
    applied = replace(rebase(30, 22, 4, Set("a", 9)), source=Source("branch", 5))
    history = History(ChangeSetState(), QUEUE, {})
    for one in log():
        history.commit(one, one.decode_full())
    history.commit(entry(30, applied), applied, "has a delta that cannot be read")
    state = history.finish()
    assert costs(history) == [(30, Cost.EDITS)]
    assert (state.taken, state.recorded(RequestId("r4")), state.cells["a"].value) == ({}, None, 2)


def test_where_nothing_is_derived_nothing_is_owed() -> None:
    first = rebase(10, 0, 1, Set("a", 1))
    history = folded(entry(10, first), damaged(12, dvu(12, 10, 1)))
    assert (history.state.owes, history.state.covers, history.state.last) == (False, 12, 12)


def test_what_a_commit_that_says_nothing_cost_is_told_by_the_next() -> None:
    """The next commit decides nothing itself."""
    mute = {"applied": None, "debt": None}
    assert costs(folded(*log(s13=damaged(13, LOG[13], **mute)))) == [(13, Cost.EDITS)]
    attempt = replace(LOG[22], kind=Kind.ATTEMPT, previous=22)
    quiet = log(s22=damaged(22, LOG[22], **mute), s30=entry(30, attempt))
    assert costs(folded(*quiet)) == [(22, Cost.NOTHING)]
    assert costs(folded(*log(s20=damaged(20, LOG[20], **mute)))) == [(20, Cost.UNKNOWN)]
    both = log(s12=damaged(12, LOG[12], **mute), s13=damaged(13, LOG[13]))
    assert costs(folded(*both)) == [(12, Cost.UNKNOWN), (13, Cost.EDITS)]


@pytest.mark.parametrize("applied", ["epoch:101", "epoch:2", "other:5", "5", "epoch:x"])
def test_what_cannot_be_true_is_not_believed(applied: str) -> None:
    history = folded(*log(s30=damaged(30, LOG[22], applied=applied)))
    assert costs(history) == [(30, Cost.UNKNOWN)]
    assert history.state.applied == Applied("epoch", 3)


def test_what_a_lost_commit_decided_is_passed_over() -> None:
    history = folded(*log(s30=damaged(30, LOG[22], applied="epoch:9")))
    assert costs(history) == [(30, Cost.EDITS)]
    assert (history.state.applied, history.state.last) == (Applied("epoch", 9), 30)
    assert history.state.recompute == {Recompute(): 30}


def test_nothing_is_applied_twice() -> None:
    copy = entry(30, LOG[13])
    again = entry(31, replace(rebase(31, 12, 2, Set("a", 9)), id="other"))
    past = entry(32, replace(dvu(32, 13, 2, Computed("b", 9)), id="another"))
    forgotten = rebase(33, 12, 3, Set("a", 9))
    forgotten = replace(forgotten, requests=(replace(forgotten.requests[0], request_id=RequestId("forgotten")),))
    early = replace(dvu(34, 9, 0, Computed("b", 9)), applied=None)  # from before the first request
    history = folded(*log(), copy, again, past, entry(33, forgotten), entry(34, early))
    assert costs(history) == [(30, Cost.NOTHING), *[(sequence, Cost.EDITS) for sequence in (31, 32, 33, 34)]]
    assert history.state.cells["a"].value == 2
    assert history.state.applied == Applied("epoch", 3)
    assert history.carried == 0


def test_a_log_whose_messages_were_numbered_anew_keeps_all_edits() -> None:
    entries = [entry(number, commit) for number, commit in enumerate(LOG.values(), 1)]
    history = folded(*entries)
    assert {id_: cell.value for id_, cell in history.state.cells.items()} == {"a": 2, "b": 2, "c": 2, "x": 3}
    assert set(history.state.outcomes) == {"r1", "r2", "r3"}
    assert history.state.stale() == {"b", "c"}


@pytest.mark.parametrize("whole", [True, False])
def test_what_stood_before_all_that_can_be_read_is_lost(whole: bool) -> None:
    first = entry(13, LOG[13]) if whole else damaged(13, LOG[13])
    history = folded(first, *log()[3:])
    sequence, cost = costs(history)[0]
    assert (sequence, cost) == (12 if whole else 13, Cost.EDITS)
    assert "before" in history.findings[0].problem


def test_what_has_no_headers_is_a_commit_only_where_it_fits() -> None:
    headers: dict[str, str] = {}
    data = encode_commit(LOG[13])[1]
    here, elsewhere = classify_message(13, 0, headers, data), classify_message(23, 0, headers, data)
    assert here.unlabelled
    history = folded(*log(s13=here))
    assert costs(history) == [(13, Cost.NOTHING)]
    assert history.state.cells["a"].value == 2
    assert folded(*log(s23=elsewhere)).findings == []
    foreign = classify_message(23, 0, headers, b"hello")
    assert foreign.classification is Classification.FOREIGN
    assert folded(*log(s23=foreign)).intact_until == 23


@pytest.mark.parametrize("content_type", ContentType)
def test_what_can_be_read_of_a_damaged_commit(content_type: ContentType) -> None:
    whole = replace(LOG[13], checkpoint=CheckpointRef(ADDRESS, 12, 5))
    headers, data = encode_commit(whole, content_type)
    broken = data.replace(b'"c"' if content_type is JSON else b"ac", b'""' if content_type is JSON else b"`", 1)
    found = classify_message(13, 0, headers, broken)
    assert (found.classification, found.reason) == (Classification.DAMAGED, "update 1: id is missing or empty")
    told = found.summary()
    assert (told.kind, told.at_ms, told.owner, told.previous) == (Kind.REBASE, 7, "owner", 12)
    assert (told.applied, told.checkpoint, told.decisions) == (Applied("epoch", 2), ADDRESS, whole.requests)
    assert (told.changes, told.ids) == (2, ("a",))


def test_a_commit_that_is_cut_off_tells_more_the_more_is_left() -> None:
    headers, data = encode_commit(LOG[13])
    seen: list[tuple[bool, int, int]] = []
    for length in range(len(data)):
        found = classify_message(13, 0, headers, data[:length])
        assert found.classification is Classification.DAMAGED
        told = found.summary()
        seen.append((told.kind is not None, len(told.decisions), len(told.ids)))
    assert seen == sorted(seen)
    assert seen[0] == (False, 0, 0)
    assert seen[-1] == (True, 1, 1)


def test_a_newer_commit_is_not_damaged() -> None:
    headers, data = encode_commit(LOG[20])
    assert classify_message(20, 0, headers | {MESSAGE_VERSION: "99"}, data).classification is Classification.NEWER
    assert classify_message(20, 0, headers, data.replace(b"cdvu", b"cdvx")).classification is Classification.NEWER


@given(st.data())
def test_edits_of_all_commits_that_can_be_read_are_kept_in_their_order(data: st.DataObject) -> None:
    """Whichever commits are damaged, missing or duplicated, the result equals that of the readable edits alone."""
    entries: list[LogMessage] = []
    expected: dict[str, int] = {}
    decided: set[str] = set()
    previous = 0
    for number in range(1, data.draw(st.integers(2, 12))):
        id_, sequence = data.draw(st.sampled_from("abcd")), previous + data.draw(st.integers(1, 3))
        commit = rebase(number, previous, number, Set(id_, number))
        previous = sequence
        fate = data.draw(st.sampled_from(["whole", "whole", "damaged", "mute", "gone", "unlabelled"]))
        if fate == "gone":
            continue
        if fate in ("damaged", "mute"):
            more = {"applied": None, "debt": None} if fate == "mute" else {}
            entries.append(damaged(sequence, commit, **more))
            continue
        one = entry(sequence, commit)
        if fate == "unlabelled" and entries and entries[-1].sequence == commit.previous:
            one = classify_message(sequence, 0, {}, one.data)
        entries.append(one)
        expected[id_] = number
        decided.add(f"r{number}")
    whole = [one for one in entries if one.classification is Classification.COMMIT]
    for one in data.draw(st.lists(st.sampled_from(whole), max_size=2)) if whole else ():
        previous += 1
        entries.append(replace(one, sequence=previous))
    history = folded(*entries)
    assert {id_: cell.value for id_, cell in history.state.cells.items()} == expected
    assert set(history.state.outcomes) == decided


@given(st.data())
def test_whatever_stands_on_a_log_is_told_and_folded(data: st.DataObject) -> None:
    """No bytes and no headers make the doctor fail."""
    history = History(ChangeSetState(), QUEUE, {})
    for sequence, commit in LOG.items():
        headers, payload = encode_commit(commit)
        for name in data.draw(st.sets(st.sampled_from([CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION, APPLIED, DEBT]))):
            headers[name] = data.draw(st.sampled_from(["", "1", "x", "epoch:50", "Commit", "application/json"]))
        at = data.draw(st.integers(0, len(payload)))
        payload = payload[:at] + data.draw(st.binary(max_size=4)) + payload[at + data.draw(st.integers(0, 4)) :]
        found = classify_message(sequence, 0, headers, payload)
        found.summary()
        if found.classification is Classification.DAMAGED:
            history.damaged(found)
        elif found.classification is Classification.COMMIT:
            history.commit(found, found.decode_full())
        else:
            history.foreign(found)
    assert history.finish().last == 22


def test_a_branch_whose_replay_is_lost_has_not_moved_its_base() -> None:
    """Otherwise, the edits of the target would never be taken over."""
    branch = Branch(9, "main", 5, "main", 5, changes={"a": None})
    state = ChangeSetState()
    state.last, state.branch = 9, branch
    history = History(state, QUEUE, {})
    decision = Decision(3, RequestId("r3"), Outcome.SUCCESS, 1, position=8)
    about: dict[str, Any] = {"replay": Replay((Set("a", 2),), (Remove("a"),)), "source": Source("main", 8)}
    moved = Commit("c", 9, Kind.REPLAY, 7, "owner", Applied("epoch", 3), 9, (decision,), **about)
    history.commit(entry(10, moved), moved, "its blob is gone")
    assert costs(history) == [(10, Cost.EDITS)]
    assert (branch.base, branch.changes, branch.conflicts) == (5, {"a": None}, {})
    assert RequestId("r3") not in state.outcomes
