"""The checker finds no violation in a correct history, and each kind of violation in one that was falsified."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from rebaser_client import Commit, Derive, Set
from rebaser_core.commit import Applied, CheckpointRef, Computed, Decision, Kind, Outcome
from rebaser_core.ids import RequestId
from tests.chaos.checker import Evidence, Expectations, Violation, check, excerpt, folded
from tests.chaos.history import Answer, History, Operation, Read

STREAM = "2026-01-01"


@dataclass
class Case:
    history: History
    log: list[Commit]
    queued: list[int]
    expect: Expectations
    letters: list[tuple[str, int]]

    def verdict(self) -> list[Violation]:
        evidence = Evidence("cs", self.log, folded(self.log), self.queued, self.letters)
        return check(self.history, [evidence], self.expect)

    def operation(self, id_: str) -> Operation:
        return self.history.operations[id_]

    def change(self, at: int, **fields: object) -> None:
        self.log[at] = replace(self.log[at], **fields)  # type: ignore[arg-type]


def good() -> Case:
    """Return a correct case: two workers on one change set, three requests in two commits, a DVU, a checkpoint, and one
    more request."""
    history = History()
    for id_, sent, updates in (
        ("a-1", 1.0, (Set("seen/a", 1), Set("n", 2), Derive("twice", "sum", {"of": ["n", "n"]}))),
        ("b-1", 1.5, (Set("seen/b", 1),)),
        ("a-2", 3.0, (Set("seen/a", 2), Set("n", 5))),
        ("b-2", 6.0, (Set("seen/b", 2),)),
    ):
        history.operations[id_] = Operation(id_, "cs", updates, sent)
    for id_, kind, at, commit, performed in (
        ("a-1", "applied", 2.0, 10, 3),
        ("b-1", "stored", 2.1, None, 0),
        ("a-2", "applied", 4.0, 14, 2),
        ("b-2", "applied", 7.0, 30, 1),
    ):
        history.operations[id_].answers.append(Answer(kind, at, commit, performed))
    history.reads.append(Read("cs", 4.5, 20, 14, {"seen/a": 2, "seen/b": 1}, 14))
    log = [
        Commit("i1", 0, Kind.REBASE, 0, "s0", Applied(STREAM, 1), 0, _won(1, "a-1", 3), sequence=10),
        Commit("i2", 10, Kind.REBASE, 0, "s0", Applied(STREAM, 4), 0, _won(3, "b-1", 1) + _won(4, "a-2", 2)),
        Commit("i3", 14, Kind.DVU, 0, "s0", Applied(STREAM, 4), 14, (), (Computed("twice", 10),), sequence=20),
        Commit("i4", 20, Kind.CHECKPOINT, 0, "s1", Applied(STREAM, 4), None, sequence=25),
        Commit("i5", 25, Kind.REBASE, 0, "s1", Applied(STREAM, 9), None, _won(9, "b-2", 1), sequence=30),
    ]
    log[1] = replace(log[1], sequence=14)
    for index, entry in enumerate(log):
        asked = [one for decision in entry.requests for one in history.operations[decision.request_id].updates]
        if asked:
            log[index] = replace(entry, delta=tuple(asked))
    log[3] = replace(log[3], checkpoint=CheckpointRef("sha256:0", 20, 100))
    return Case(history, log, [], Expectations(), [])


def _won(sequence: int, id_: str, performed: int) -> tuple[Decision, ...]:
    return (Decision(sequence, RequestId(id_), Outcome.SUCCESS, performed),)


def test_a_good_history_is_good() -> None:
    assert good().verdict() == []


def test_what_is_to_be_refused_may_be() -> None:
    case = good()
    refused(case)
    assert case.verdict() == []


def lost(case: Case) -> None:
    del case.log[1]
    case.change(1, previous=10)


def beheaded(case: Case) -> None:
    case.change(0, previous=7)


def landed_twice(case: Case) -> None:
    case.change(3, id="i3")


def forgotten(case: Case) -> None:
    case.history.operations["c-1"] = Operation("c-1", "cs", (Set("x", 1),), 1.0, answers=[Answer("stored", 2.0)])


def never_sent(case: Case) -> None:
    del case.history.operations["b-1"]


def applied_twice(case: Case) -> None:
    again = case.log[1].requests[0]
    case.change(4, requests=(*case.log[4].requests, replace(again, sequence=11)), applied=Applied(STREAM, 11))


def out_of_order(case: Case) -> None:
    one, two = case.log[1].requests
    case.change(1, requests=(replace(one, sequence=4), replace(two, sequence=3)))


def overtaken(case: Case) -> None:
    case.operation("b-2").sent = 0.1
    case.operation("b-2").answers[0] = replace(case.operation("b-2").answers[0], at=0.2)


def other_stream(case: Case) -> None:
    case.change(4, applied=Applied("2026-02-02", 9))


def applied_back(case: Case) -> None:
    case.change(3, applied=Applied(STREAM, 3))


def covers_back(case: Case) -> None:
    case.change(3, covers=10)


def covers_ahead(case: Case) -> None:
    case.change(2, covers=20)


def half_applied(case: Case) -> None:
    case.change(1, delta=case.log[1].delta[:-1])


def miscounted(case: Case) -> None:
    case.change(4, requests=_won(9, "b-2", 2))


def attempt_that_changes(case: Case) -> None:
    case.change(3, delta=(Set("n", 7),))


def other_type(case: Case) -> None:
    case.change(4, delta=(Set("seen/b", 2.0),))


def wrong_commit(case: Case) -> None:
    case.operation("a-2").answers[0] = replace(case.operation("a-2").answers[0], commit=10)


def lied_rejection(case: Case) -> None:
    case.operation("a-2").answers[0] = Answer("rejected", 4.0, 14)


def innocent_dead(case: Case) -> None:
    dead = replace(case.log[4].requests[0], outcome=Outcome.DEAD, performed=0, code="poison")
    case.change(4, requests=(dead,), delta=())
    case.operation("b-2").answers.clear()
    case.letters.append(("b-2", 9))


def refused(case: Case) -> None:
    """Falsify nothing yet: the last request asks for something impossible, and is refused."""
    innocent_dead(case)
    case.operation("b-2").due = Outcome.DEAD


def let_in(case: Case) -> None:
    case.operation("b-2").due = Outcome.CONFLICTS


def not_buried(case: Case) -> None:
    refused(case)
    case.letters.clear()


def buried_alive(case: Case) -> None:
    case.letters.append(("a-2", 4))


def skipped(case: Case) -> None:
    innocent_dead(case)
    case.change(4, requests=(replace(case.log[4].requests[0], code="skipped"),))
    case.expect = Expectations(may_die=True)


def stale_read(case: Case) -> None:
    case.history.reads[0] = Read("cs", 8.0, 20, 14, {"seen/a": 2, "seen/b": 1}, 0)


def mixed_read(case: Case) -> None:
    case.history.reads[0] = Read("cs", 4.5, 20, 14, {"seen/a": 1, "seen/b": 1}, 0)


def uncovered_read(case: Case) -> None:
    case.history.reads[0] = Read("cs", 4.5, 14, 0, {"seen/a": 2, "seen/b": 1}, 14)


def read_of_nothing(case: Case) -> None:
    case.history.reads[0] = Read("cs", 4.5, 17, 14, {"seen/a": 2, "seen/b": 1}, 0)


def stranded(case: Case) -> None:
    case.queued.append(12)


def owed(case: Case) -> None:
    del case.log[2]
    case.change(2, previous=14, covers=0)
    case.change(3, covers=0)


def wrong_value(case: Case) -> None:
    case.change(2, delta=(Computed("twice", 4),))


def silence(case: Case) -> None:
    case.history.troubles.append("request a-1 had neither an answer nor an error")


@pytest.mark.parametrize(
    ("tamper", "rule", "text"),
    [
        (beheaded, 1, "the log begins with a commit that follows 7"),
        (landed_twice, 1, "stands in the log twice"),
        (applied_twice, 2, "request b-1 is decided a second time"),
        (out_of_order, 2, "request a-2 (sequence 3) is late"),
        (applied_back, 3, "`applied` is 3, decided is 4"),
        (other_stream, 3, "`applied` speaks of 2 streams"),
        (covers_back, 4, "goes back from 14 to 10"),
        (covers_ahead, 4, "ahead of the log"),
        (never_sent, 5, "nobody sent request b-1"),
        (miscounted, 5, "2 updates of b-2 are performed"),
        (half_applied, 5, "the changes are not those"),
        (other_type, 5, "the changes are not those"),
        (innocent_dead, 5, "request b-2 is decided dead (poison: )"),
        (let_in, 5, "request b-2 is decided success"),
        (skipped, 5, "request b-2 is decided dead (skipped: )"),
        (attempt_that_changes, 5, "a commit of kind checkpoint changes something"),
        (lost, 6, "request a-2 was applied and is not in the log"),
        (forgotten, 6, "request c-1 was stored and is not in the log"),
        (silence, 6, "neither an answer nor an error"),
        (wrong_commit, 7, "request a-2 was told (True, 10, 2), the log says (True, 14, 2)"),
        (lied_rejection, 7, "request a-2 was told (False, 14, 0)"),
        (overtaken, 8, "b-2 was stored before"),
        (stale_read, 9, "a read shows 20 though 30 had been answered"),
        (mixed_read, 9, "shows seen/a=1 for 2"),
        (uncovered_read, 9, "covered up to 0, 14 was answered as derived"),
        (read_of_nothing, 9, "17, where no commit is"),
        (stranded, 10, "requests [12] are still in the queue"),
        (owed, 10, "a DVU is owed for ['n'"),
        (wrong_value, 12, "twice (of 1) is"),
        (not_buried, 13, "request b-2 (sequence 9) is dead, and no letter tells of it"),
        (buried_alive, 13, "a dead letter holds request a-2 (sequence 4), which is not dead"),
    ],
)
def test_it_finds(tamper: Callable[[Case], None], rule: int, text: str) -> None:
    case = good()
    tamper(case)
    found = case.verdict()
    assert [violation for violation in found if violation.rule == rule and text in violation.text], found
    evidence = [Evidence("cs", case.log, folded(case.log))]
    assert all(violation.text in excerpt(violation, evidence, case.history) for violation in found)


def test_a_broken_chain() -> None:
    case = good()
    whole = folded(case.log)
    case.change(2, previous=10)
    found = check(case.history, [Evidence("cs", case.log, whole)], case.expect)
    assert {violation.rule for violation in found} >= {1, 11}


def test_a_load_that_shows_something_else() -> None:
    case = good()
    shown = folded(case.log)
    shown.cells.columns.set("n", 6)
    found = check(case.history, [Evidence("cs", case.log, shown)], case.expect)
    assert 11 in {violation.rule for violation in found}


def test_what_a_squeezed_server_may_do() -> None:
    case = good()
    innocent_dead(case)
    case.expect = Expectations(may_die=True)
    assert case.verdict() == []


def test_an_excerpt_tells_the_story_of_the_requests() -> None:
    case = good()
    half_applied(case)
    [first, *_] = [violation for violation in case.verdict() if violation.rule == 5]
    text = excerpt(first, [Evidence("cs", case.log, folded(case.log))], case.history)
    assert ">14 after 10 rebase by s0, applied 4" in text
    assert "#4 a-2 success, sent at 3.000; applied at 4.000 (14)" in text
