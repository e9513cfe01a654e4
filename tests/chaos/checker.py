"""The verdict: the answers that clients got are compared with the whole log, and with what servers show at the end.

Invariant: every rule holds on a machine of any speed, so each violation is a defect. Rules, by number:

 1 the chain of commits is unbroken and begins at nothing   7 an answer names the commit that holds its request
 2 requests are decided in the order of the stream, once    8 a request stored before another was sent precedes it
 3 `applied` is what is decided, and never decreases        9 a read shows the state after some commit, not too old
 4 `covers` never decreases, nor exceeds the log           10 at rest, every request has an outcome and none waits
 5 a commit changes exactly what its requests ask for      11 a load by checkpoint equals the fold of the whole log
 6 no acknowledged request is missing                      12 derived values equal those of a full recompute
                                                           13 dead letters are the requests that the log calls dead
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from rebaser_core.commit import Commit, Decision, Kind, Outcome
from rebaser_core.ids import RequestId
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Update
from tests.chaos.history import History, Operation, Read
from tests.support.graphs import Book, expected, typed

AROUND = 3  # commits that an excerpt shows before and after the faulty one


@dataclass(frozen=True)
class Violation:
    """A broken rule: its number, a description, and a log sequence (0: none)."""

    rule: int
    change_set: str
    text: str
    at: int = 0


@dataclass(frozen=True)
class Evidence:
    """What is known of a change set at rest.

    `shown` is its state as a client loads it. `queued` contains the sequences of the messages in its queue, `letters`
    the request id and the sequence of each dead letter.
    """

    change_set: str
    log: Sequence[Commit]
    shown: ChangeSetState
    queued: Sequence[int] = ()
    letters: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Expectations:
    """Which rules the faults of a round weaken.

    `may_die`: there was a fault that servers cannot distinguish from a bad request, so requests may be dead.
    `fresh_reads`: a read that begins after an answer sees the commit. (A NATS leader that was paused and replaced may
    still answer with an older state.)
    """

    may_die: bool = False
    fresh_reads: bool = True


def check(history: History, evidence: Sequence[Evidence], expect: Expectations) -> list[Violation]:
    """Return all violations of a round."""
    found = [Violation(6, "", trouble) for trouble in history.troubles]
    decided = {decision.request_id for one in evidence for _, decision in _decisions(one.log)}
    for one in evidence:
        operations = {id_: op for id_, op in history.operations.items() if op.change_set == one.change_set}
        reads = [read for read in history.reads if read.change_set == one.change_set]
        for rule, problems in (
            (1, _chain(one.log)),
            (2, _order(one.log)),
            (3, _applied(one.log)),
            (4, _covers(one.log)),
            (5, _contents(one.log, operations, expect)),
            (7, _answers(one.log, operations)),
            (8, _real_time(one.log, operations)),
            (10, _rest(one)),
            (11, _shown(one)),
            (12, _derived(one)),
            (13, _letters(one)),
        ):
            found.extend(Violation(rule, one.change_set, text, at) for text, at in problems)
        if not any(violation.rule == 1 for violation in found):
            found.extend(Violation(9, one.change_set, text, at) for text, at in _reads(one, operations, reads, expect))
    for operation in history.operations.values():
        if operation.answers and operation.id not in decided:
            kinds = ", ".join(answer.kind for answer in operation.answers)
            found.append(
                Violation(6, operation.change_set, f"request {operation.id} was {kinds} and is not in the log")
            )
    return found


Problems = Iterator[tuple[str, int]]


def _chain(log: Sequence[Commit]) -> Problems:
    if log and log[0].previous != 0:
        yield f"the log begins with a commit that follows {log[0].previous}", log[0].sequence
    for before, after in pairwise(log):
        if after.previous != before.sequence or after.sequence <= before.sequence:
            yield f"commit {after.sequence} says that it follows {after.previous}", after.sequence
    ids = [commit.id for commit in log]
    if len(set(ids)) != len(ids):
        yield "a commit stands in the log twice", 0


def _order(log: Sequence[Commit]) -> Problems:
    highest = 0
    seen: set[str] = set()
    for commit, decision in _decisions(log):
        if decision.request_id in seen:
            yield f"request {decision.request_id} is decided a second time", commit.sequence
        seen.add(decision.request_id)
        if decision.sequence <= highest:
            yield f"request {decision.request_id} (sequence {decision.sequence}) is late", commit.sequence
        highest = max(highest, decision.sequence)


def _applied(log: Sequence[Commit]) -> Problems:
    highest = 0
    streams = {commit.applied.stream for commit in log if commit.applied is not None}
    if len(streams) > 1:
        yield f"`applied` speaks of {len(streams)} streams", 0
    for commit in log:
        highest = max([highest, *(decision.sequence for decision in commit.requests)])
        said = commit.applied.sequence if commit.applied is not None else 0
        if said != highest:
            yield f"`applied` is {said}, decided is {highest}", commit.sequence


def _covers(log: Sequence[Commit]) -> Problems:
    before = 0
    for commit in log:
        covers = commit.sequence if commit.covers is None else commit.covers
        if covers < before:
            yield f"`covers` goes back from {before} to {covers}", commit.sequence
        if covers > commit.sequence or (commit.kind is Kind.DVU and (commit.covers or 0) > commit.previous):
            yield f"`covers` is {covers}, ahead of the log", commit.sequence
        before = covers


def _contents(log: Sequence[Commit], operations: Mapping[str, Operation], expect: Expectations) -> Problems:
    for commit in log:
        wanted: list[Update] = []
        for decision in commit.requests:
            operation = operations.get(decision.request_id)
            if operation is None:
                yield f"nobody sent request {decision.request_id}", commit.sequence
                continue
            killed = decision.outcome is Outcome.DEAD and decision.code != "skipped" and expect.may_die
            if decision.outcome is Outcome.SUCCESS:
                wanted.extend(operation.updates)
            if decision.performed != (len(operation.updates) if decision.outcome is Outcome.SUCCESS else 0):
                yield f"{decision.performed} updates of {decision.request_id} are performed", commit.sequence
            if decision.code == "skipped" or (decision.outcome is not operation.due and not killed):
                why = f"{decision.outcome} ({decision.code}: {decision.message})"
                yield f"request {decision.request_id} is decided {why}", commit.sequence
        if commit.kind is Kind.REBASE and repr(commit.delta) != repr(tuple(wanted)):  # `1`, `1.0` and `True` differ
            yield "the changes are not those that its requests ask for", commit.sequence
        if commit.kind in (Kind.ATTEMPT, Kind.CHECKPOINT) and (commit.delta or commit.requests):
            yield f"a commit of kind {commit.kind} changes something", commit.sequence


def _answers(log: Sequence[Commit], operations: Mapping[str, Operation]) -> Problems:
    decided = {decision.request_id: (commit, decision) for commit, decision in _decisions(log)}
    for operation in operations.values():
        for answer in operation.answers:
            if answer.kind == "stored" or operation.id not in decided:
                continue  # a missing commit violates rule 6
            commit, decision = decided[RequestId(operation.id)]
            told = (answer.kind == "applied", answer.commit, answer.performed)
            true = (decision.outcome is Outcome.SUCCESS, commit.sequence, decision.performed)
            if told != true:
                yield f"request {operation.id} was told {told}, the log says {true}", commit.sequence


def _real_time(log: Sequence[Commit], operations: Mapping[str, Operation]) -> Problems:
    latest: Operation | None = None  # of the operations so far, the one that was sent last
    for commit, decision in _decisions(log):
        operation = operations.get(decision.request_id)
        if operation is None:
            continue
        if latest is not None and operation.done is not None and operation.done < latest.sent:
            yield f"{operation.id} was stored before {latest.id} was sent, and comes after it", commit.sequence
        if latest is None or operation.sent > latest.sent:
            latest = operation


def _reads(one: Evidence, operations: Mapping[str, Operation], reads: Sequence[Read], expect: Expectations) -> Problems:
    known = sorted(
        (answer.at, answer.commit)
        for operation in operations.values()
        for answer in operation.answers
        if answer.commit is not None
    )
    times = [when for when, _ in known]
    newest = list(accumulate([0, *(commit for _, commit in known)], max))
    at: dict[int, list[Read]] = {}
    for read in reads:
        at.setdefault(read.last, []).append(read)
    state = ChangeSetState()
    for commit in (None, *one.log):
        if commit is not None:
            state.fold(commit.sequence, commit)
        for read in at.pop(state.last, ()):
            seen = {id_: cell.value for id_, cell in state.cells.items() if id_.startswith("seen/")}
            if read.seen != seen or read.covers != state.covers:
                yield f"a read at {read.last} shows {_differences(read.seen, seen)}", read.last
            answered = newest[bisect_left(times, read.sent)]
            if expect.fresh_reads and read.last < answered:
                yield f"a read shows {read.last} though {answered} had been answered", read.last
            if expect.fresh_reads and read.covers < read.owed:
                yield f"a read is covered up to {read.covers}, {read.owed} was answered as derived", read.last
    for last in at:
        yield f"a read shows log sequence {last}, where no commit is", last


def _rest(one: Evidence) -> Problems:
    applied = one.shown.applied.sequence if one.shown.applied is not None else 0
    stranded = [sequence for sequence in one.queued if sequence > applied]
    if stranded:
        yield f"requests {stranded[:5]} are still in the queue, `applied` is {applied}", 0
    if one.shown.owes:
        yield f"a DVU is owed for {sorted(one.shown.roots)[:5]}", 0


def _shown(one: Evidence) -> Problems:
    state = folded(one.log)
    shown = one.shown
    for name in ("last", "covers", "applied", "cells", "roots"):
        if getattr(state, name) != getattr(shown, name):
            yield f"a load from the checkpoint has other {name} than the fold of the log", state.last


def _derived(one: Evidence) -> Problems:
    if one.shown.owes:
        return  # rule 10 reports this
    updates = list(one.shown.updates())
    found = typed(one.shown.values())
    again = Book(updates)
    again.update()
    for who, wanted in (("an independent evaluator", expected(updates)), ("a full recompute", again.values())):
        other = typed(wanted)
        wrong = sorted(id_ for id_ in found if found[id_] != other[id_])
        if wrong:
            yield f"{wrong[0]} (of {len(wrong)}) is {found[wrong[0]]}, {who} says {other[wrong[0]]}", one.shown.last


def _letters(one: Evidence) -> Problems:
    dead = {
        (decision.request_id, decision.sequence): commit
        for commit, decision in _decisions(one.log)
        if decision.outcome is Outcome.DEAD
    }
    for (id_, sequence), commit in dead.items():
        if (id_, sequence) not in one.letters:
            yield f"request {id_} (sequence {sequence}) is dead, and no letter tells of it", commit.sequence
    for id_, sequence in set(one.letters) - set(dead):  # type: ignore[assignment]
        yield f"a dead letter holds request {id_} (sequence {sequence}), which is not dead", 0


def folded(log: Sequence[Commit]) -> ChangeSetState:
    """Return the fold of the whole log, up to the first break of its chain, which rule 1 reports."""
    state = ChangeSetState()
    for commit in log:
        if commit.previous != state.last:
            break
        state.fold(commit.sequence, commit)
    return state


def _decisions(log: Sequence[Commit]) -> Iterator[tuple[Commit, Decision]]:
    return ((commit, decision) for commit in log for decision in commit.requests)


def _differences(told: Mapping[str, object], true: Mapping[str, object]) -> str:
    ids = sorted(id_ for id_ in {*told, *true} if told.get(id_) != true.get(id_))
    return ", ".join(f"{id_}={told.get(id_)} for {true.get(id_)}" for id_ in ids[:5]) or "another `covers`"


# -- reports -----------------------------------------------------------------------------------------------------------


def excerpt(violation: Violation, evidence: Sequence[Evidence], history: History) -> str:
    """Return the violation with the part of the log around it, and what the clients of the requests there observed."""
    lines = [f"rule {violation.rule}, change set {violation.change_set or '-'}: {violation.text}"]
    log = next((one.log for one in evidence if one.change_set == violation.change_set), ())
    at = next((index for index, commit in enumerate(log) if commit.sequence >= violation.at), len(log))
    for commit in log[max(at - AROUND, 0) : at + AROUND + 1] if violation.at else ():
        covers = "itself" if commit.covers is None else commit.covers
        applied = commit.applied.sequence if commit.applied is not None else "-"
        mark = ">" if commit.sequence == violation.at else " "
        lines.append(
            f" {mark}{commit.sequence} after {commit.previous} {commit.kind} by {commit.owner}, applied {applied}, "
            f"covers {covers}, {len(commit.delta)} changes, checkpoint {commit.checkpoint is not None}"
        )
        lines.extend(f"     {_story(decision, history)}" for decision in commit.requests)
    return "\n".join(lines)


def _story(decision: Decision, history: History) -> str:
    operation = history.operations.get(decision.request_id)
    told = f"#{decision.sequence} {decision.request_id} {decision.outcome}"
    if operation is None:
        return f"{told}, of nobody"
    answers = [f"{answer.kind} at {answer.at:.3f} ({answer.commit})" for answer in operation.answers]
    return f"{told}, sent at {operation.sent:.3f}; {', '.join([*answers, *operation.problems]) or 'no answer'}"
