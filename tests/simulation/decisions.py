"""Checks what each commit decides: requests, applies, rebases, reverts, creations and pulls."""

import math
from collections.abc import Callable
from typing import Any

from rebaser_core.branches.branch import Apply, Create, Rebase
from rebaser_core.commit import Commit, Decision, Kind, Marking, Outcome, Reverts
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesRequest, decode_updates_blob
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive, Remove, Update
from tests.simulation.applies import (
    protected_wrongly,
    wrong_apply,
    wrong_apply_refusal,
    wrong_as_deleted,
    wrong_deletion,
    wrong_mark,
)
from tests.simulation.book import as_null
from tests.simulation.forks import action_of, closed_wrongly, wrong_refusal
from tests.simulation.history import Asked, History, Violation, that
from tests.simulation.rebases import wrong_pull, wrong_rebase_refusal, wrong_replay, wrong_settled
from tests.simulation.tries import MAX_DEATHS, Strikes, Tries


class DecisionChecker:
    """Checks the decision of each commit.

    `blob` returns the bytes of a blob by address, `now` returns virtual seconds, and `tell` is called with a line about
    each commit.
    """

    def __init__(
        self,
        subjects: Subjects,
        blob: Callable[[str], bytes],
        now: Callable[[], float],
        tell: Callable[[str, str], None],
    ) -> None:
        self._subjects = subjects
        self._blob = blob
        self._now = now
        self._tell = tell
        self.histories: dict[ChangeSetKey, History] = {}
        self.violation: Violation | None = None
        self.strikes = Strikes(now)
        self.dvus: dict[tuple[str, str], int] = {}
        self._born_ms = 0
        self.outdated: Callable[[], float] = lambda: -math.inf  # returns when a deposed leader last answered a read
        self.forgetful = False  # True if outcomes may be forgotten while the request is still queued
        self.history_for_ms = 0
        self.closed_for = 0.0  # virtual seconds until a closed change set is deleted; 0: never
        self.crowded_at = 0  # bytes of all logs from which on servers purge history of any age; 0: never
        # By checkpoint: the commit whose state it has; 0 if that is the commit at its sequence.
        self._replaced: dict[str, int] = {}
        self._crowded = -math.inf  # when the logs were last that large
        self._newest = 0.0  # when the newest commit of any log was stored
        self.sent: set[str] = set()  # ids of requests
        self.good: set[str] = set()  # ids of valid, harmless requests
        self._seen: set[str] = set()  # ids that a commit edits for an author who had seen their definitions

    def history(self, key: ChangeSetKey) -> History:
        if key not in self.histories:
            self.histories[key] = History(key, tries=Tries(self.strikes))
        return self.histories[key]

    def broken(self, text: str) -> None:
        if self.violation is None:
            self.violation = Violation(text)
            self._tell("!!!", text)

    def updates_of(self, request: EnqueueUpdatesRequest) -> tuple[Update, ...]:
        if request.updates is not None:
            return request.updates
        return decode_updates_blob(self._blob(request.updates_address or ""))

    def _decide(self, history: History, commit: Commit, sequence: int, delta: tuple[Any, ...]) -> None:
        if commit.kind is Kind.DVU:
            covers = commit.previous if commit.covers is None else commit.covers
            for item in delta:
                edited = history.book.touched.get(item.id, 0)
                that(
                    edited <= covers,
                    f"commit {sequence} has a result for {item.id}, which commit {edited} edited meanwhile",
                )
                derived = isinstance(history.book.definitions.get(item.id), Derive)
                that(derived, f"commit {sequence} has a result for {item.id}, which is not derived any more")
                history.book.note(item)
            return
        expected: list[Update] = []
        self._seen = set()
        for decision in commit.requests:
            self._decide_one(history, decision, sequence, expected, commit)
        if commit.kind is Kind.REPLAY and not commit.requests:
            expected.extend(self._check_pull(history, commit, sequence))
        self._check_said(history, commit)
        wrong = wrong_settled(history, commit, self._seen)
        that(not wrong, f"commit {sequence} is wrong: {wrong}")
        done = list(delta) if commit.reverts is None else [as_null(update) for update in delta]
        if commit.source is not None:
            done = sorted([as_null(update) for update in delta], key=lambda update: update.id)
        if commit.source is not None and commit.kind is Kind.REBASE:
            source = commit.source
            history.takes.append((sequence, source.change_set, source.sequence, source.keep))
            history.all_takes.append(history.takes[-1])
        that(done == expected, f"the edits of commit {sequence} are not those of its requests")
        if not self.history_for_ms:
            that(commit.before is None, f"commit {sequence} has `before`, although no history is kept")
        elif commit.kind in (Kind.REBASE, Kind.REPLAY):
            wrong = history.book.stood_otherwise({update.id for update in expected}, commit.before)
            that(not wrong, f"`before` of commit {sequence} is wrong: {wrong}")
        for update in expected:
            history.book.edit(update, sequence)
        if expected:
            history.deltas[sequence] = commit.previous, expected
            history.edits_at.append(sequence)
            history.last_edit = sequence
        if commit.kind is Kind.REPLAY:
            history.replays.add(sequence)
        elif expected:
            history.own = sequence
        self._check_applied(history, commit)

    def _decide_one(
        self, history: History, decision: Decision, sequence: int, expected: list[Update], commit: Commit
    ) -> None:
        asked = history.asked.get(decision.sequence)
        that(asked is not None, f"commit {sequence} decides {decision.sequence}, which is not a stored request")
        assert asked is not None
        if decision.code == "skipped" and self.forgetful and decision.sequence in history.decided:
            history.skipped.add(decision.sequence)
            return
        that(decision.sequence not in history.decided, f"request {decision.sequence} is decided twice")
        highest = max(history.decided, default=0)
        that(decision.sequence > highest, f"request {decision.sequence} is decided after {highest}")
        if asked.request_id:
            that(
                decision.request_id == asked.request_id,
                f"request {decision.sequence} is {asked.request_id}, decided as {decision.request_id}",
            )
            before = history.outcomes.get(asked.request_id)
            that(
                before is None or (before[0].outcome is Outcome.DEAD and asked.redrive > before[0].redrive),
                f"{asked.request_id} is decided again: {decision.sequence} after {before and before[0].sequence}",
            )
        older = asked.redrive > 0 and asked.dead_at_ms < self._born_ms
        if decision.outcome is not Outcome.DEAD or (decision.code == "deleted" and not older):
            what = "applied though it is older than its change set" if older else "refused as older, and is not"
            that(not older and decision.outcome is not Outcome.DEAD, f"{decision.request_id} is {what}")
        if decision.outcome is Outcome.DEAD and asked.request_id in self.good and not older:
            # Faults may have ended several tries of a harmless request by chance. No server can know that.
            unlucky = decision.code == "poison" and history.tries.ended[decision.sequence] >= MAX_DEATHS
            that(unlucky, f"valid request {asked.request_id} is declared dead: {decision.code} {decision.message}")
        if asked.message is not None and decision.outcome is not Outcome.DEAD:
            self._check_moved(history, asked.message, decision, expected)
        create, reverts = action_of(asked, Create), action_of(asked, Reverts)
        if asked.message is not None:
            edits = bool(asked.message.updates or asked.message.updates_address or reverts)
            edits |= isinstance(asked.message.action, Rebase)
            marking = action_of(asked, Marking)
            deletes = marking is not None and marking.deletes
            wrong = closed_wrongly(history, decision, edits) or protected_wrongly(history, decision, edits, deletes)
            that(not wrong, wrong)
        if history.gone and decision.outcome is not Outcome.DEAD:
            wrong = wrong_as_deleted(history, asked, decision)
            that(not wrong, f"{decision.request_id}: {wrong}")
        if decision.code == "deleted" and history.gone:
            pass
        elif create is not None:
            self._check_created(history, create, decision, sequence)
        elif action_of(asked, Apply) or action_of(asked, Marking) or action_of(asked, Rebase):
            that(not expected, f"{decision.request_id} is not alone in its commit")
            expected.extend(self._check_action(history, asked, decision, commit, sequence))
        elif reverts is not None:
            that(not expected, f"the revert {decision.request_id} is not alone in its commit")
            if self.history_for_ms:
                expected.extend(reverted(history, reverts, decision))
            elif decision.outcome is not Outcome.DEAD:
                that(decision.code == "unsupported", f"{decision.request_id} is reverted without history")
        elif decision.outcome is Outcome.SUCCESS:
            assert asked.message is not None
            expected.extend(self.updates_of(asked.message))
            if asked.message.expect_at is not None:
                self._seen |= {update.id for update in self.updates_of(asked.message)}
        history.decided[decision.sequence] = decision, sequence
        if asked.request_id:
            history.outcomes[asked.request_id] = decision, sequence
            history.answers.setdefault(asked.request_id, []).append((decision, sequence))

    def _check_action(
        self, history: History, asked: Asked, decision: Decision, commit: Commit, sequence: int
    ) -> list[Update]:
        """Check the decision on an apply or a mark; return the edits that it must have made."""
        apply, marking, success = (
            action_of(asked, Apply),
            action_of(asked, Marking),
            decision.outcome is Outcome.SUCCESS,
        )
        if decision.outcome is Outcome.DEAD:
            return []
        if not self.history_for_ms:
            told = "no_such_change_set" if marking else "not_a_branch" if action_of(asked, Rebase) else "unsupported"
            refused = decision.code in ("unsupported", told)
            that(refused, f"{decision.request_id} needs history: {decision.outcome}")
            return []
        if marking is not None:
            wrong = wrong_mark(history, marking, decision) or wrong_deletion(history, asked, decision, self.closed_for)
            that(not wrong, f"{decision.request_id}: {wrong}")
            that(commit.marking == (marking if success else None), f"commit {sequence} marks {commit.marking}")
            if success and marking.protected is not None:
                history.marks.append((sequence, marking.protected))
            if success and marking.status is not None:
                history.statuses.append((sequence, marking.status))
        if apply is None:
            return self._check_rebase(history, asked, decision, commit, sequence)
        source = self.histories.get(ChangeSetKey(history.key.workspace, apply.source))
        if success:
            wrong, edits = wrong_apply(history, source, apply, asked, commit)
            that(not wrong, f"commit {sequence} applies {apply.source}: {wrong}")
            return edits
        wrong = wrong_apply_refusal(history, source, apply, asked, decision)
        that(not wrong, f"{decision.request_id} is refused as {decision.code}: {wrong}")
        return []

    def _check_rebase(
        self, history: History, asked: Asked, decision: Decision, commit: Commit, sequence: int
    ) -> list[Update]:
        """Check the decision on a rebase, if the request asks for one. Return the edits that it must have made."""
        rebase = action_of(asked, Rebase)
        if rebase is None:
            return []
        if decision.outcome is not Outcome.SUCCESS:
            source = self.histories.get(ChangeSetKey(history.key.workspace, history.target[0]))
            wrong = wrong_rebase_refusal(history, source, rebase, decision)
            that(not wrong, f"{decision.request_id} is refused as {decision.code}: {wrong}")
            return []
        wrong, edits = wrong_replay(self.histories, history, rebase, asked.knows, commit, sequence)
        that(not wrong, f"commit {sequence} rebases {history.key}: {wrong}")
        count = len(history.disputes)
        that(
            decision.unresolved == count,
            f"the answer to {decision.request_id} reports {decision.unresolved} conflicts instead of {count}",
        )
        return edits

    def _check_pull(self, history: History, commit: Commit, sequence: int) -> list[Update]:
        """Check a commit that brings a branch up to date without a request; return the edits that it must have made."""
        wrong = wrong_pull(self.histories, history, commit, self._now())
        that(not wrong, f"commit {sequence} brings {history.key} up to date: {wrong}")
        loaded = history.loaded.get(commit.owner, 0.0)
        known = loaded if self.outdated() < loaded else -math.inf
        wrong, edits = wrong_replay(self.histories, history, Rebase(), known, commit, sequence)
        that(not wrong, f"commit {sequence} brings {history.key} up to date: {wrong}")
        return edits

    def _check_created(self, history: History, create: Create, decision: Decision, sequence: int) -> None:
        if decision.outcome is Outcome.SUCCESS:
            that(history.birth == sequence, f"{decision.request_id} created nothing")
        elif decision.outcome is Outcome.ERROR:
            if not self.history_for_ms:
                that(decision.code == "unsupported", f"{decision.request_id} is refused as {decision.code}")
                return
            parent = None
            if create.parent is not None:
                parent = self.histories.get(ChangeSetKey(history.key.workspace, create.parent))
            wrong = wrong_refusal(history, parent, create, decision.code, sequence)
            that(not wrong, f"{decision.request_id} is refused as {decision.code}: {wrong}")

    def _check_moved(
        self, history: History, request: EnqueueUpdatesRequest, decision: Decision, expected: list[Update]
    ) -> None:
        """Check that a request with `expect_at` is refused exactly if one of its ids was edited after that position, or
        by an earlier request of this commit."""
        if request.expect_at is None or request.action is not None:
            that(
                request.action is not None or decision.code != "moved",
                f"{request.id} is refused as moved, but has no expected position",
            )
            return
        if decision.code in ("protected", "closed", "deleted"):
            return
        book, ids = history.book, {update.id for update in self.updates_of(request)}
        newest = [book.touched[id_] if id_ in book.definitions else history.last_edit for id_ in ids]
        newest += [history.birth, *(history.disputes[id_].told for id_ in ids & history.disputes.keys())]
        moved = max(newest, default=0) > request.expect_at or not ids.isdisjoint(update.id for update in expected)
        refused = decision.code == "moved"
        # Without history, checkpoints do not record when a value was defined, so a request may be refused needlessly.
        right = refused == moved or (refused and not self.history_for_ms)
        that(right, f"{request.id} is {decision.code or 'applied'}, and moved: {moved}")

    def _check_said(self, history: History, commit: Commit) -> None:
        """Check that the commit names the authors of its requests, and the commits that it reverts."""
        asked = [history.asked[decision.sequence] for decision in commit.requests]
        authors = [one.message.author if one.message is not None and self.history_for_ms else "" for one in asked]
        told = [one.author for one in commit.authors] or [""] * len(authors)
        if not any(decision.outcome is Outcome.DEAD for decision in commit.requests):
            that(told == authors, f"a commit names the authors {told}, but {authors} sent its requests")
        done = [reverts for one in asked if (reverts := action_of(one, Reverts)) is not None]
        success = len(commit.requests) == 1 and commit.requests[0].outcome is Outcome.SUCCESS
        action = asked[0].message.action if len(asked) == 1 and success and asked[0].message is not None else None
        if commit.requests or commit.kind is not Kind.REPLAY:
            that(
                (commit.source is not None) == isinstance(action, (Apply, Rebase)), f"a commit applies {commit.source}"
            )
            that((commit.kind is Kind.REPLAY) == isinstance(action, Rebase), f"{action} is decided by a {commit.kind}")
        that(
            commit.reverts == (done[0] if done and success else None), f"a commit reverts {commit.reverts}, not {done}"
        )

    def _check_applied(self, history: History, commit: Commit) -> None:
        applied, before = commit.applied, history.applied
        if applied is None:
            that(before is None, "a commit lacks `applied`")
            return
        if before is not None:
            that(applied.stream == before.stream, "`applied` names another stream")
            that(
                applied.sequence >= before.sequence, f"`applied` decreases from {before.sequence} to {applied.sequence}"
            )
        highest = max(history.decided, default=0)
        that(applied.sequence >= highest, f"`applied` is {applied.sequence}, although {highest} is decided")
        for sequence, asked in history.asked.items():
            if sequence <= applied.sequence and sequence not in history.decided:
                that(asked.request_id in history.outcomes, f"request {sequence} was skipped")
        history.applied = applied


def reverted(history: History, reverts: Reverts, decision: Decision) -> list[Update]:
    """Return the edits that `decision` on a revert must have made. Raises `Violation` if the decision is wrong."""
    found = {at: delta for at, delta in history.deltas.items() if reverts.first <= at <= reverts.last}
    found = {at: delta for at, delta in found.items() if at not in history.replays}
    ids = list({update.id: None for _, delta in found.values() for update in delta})
    if reverts.first <= history.birth:
        right = decision.code in ("before_creation", "closed", "protected") or decision.outcome is Outcome.DEAD
        that(right, f"{decision.request_id} reverts commits from before its change set was created: {decision.outcome}")
        return []
    if decision.code in ("closed", "protected"):
        return []
    if decision.code == "purged":
        that(reverts.first <= history.purged, f"{decision.request_id} is refused as purged, although nothing is purged")
        return []
    if decision.code == "no_such_position":
        there = [at for at in history.times if reverts.first <= at <= reverts.last]
        that(not there, f"{decision.request_id} is refused, and there are {there}")
        return []
    as_of, here = history.book.as_of, history.book.definitions
    touching = {id_: [at for at, (_, delta) in found.items() if any(one.id == id_ for one in delta)] for id_ in ids}
    stood = {id_: as_of[found[min(at)][0]].get(id_) for id_, at in touching.items()}
    left = {id_: as_of[max(at)].get(id_) for id_, at in touching.items()}
    moved = [id_ for id_ in ids if repr(stood.get(id_)) != repr(left.get(id_))]
    moved = [id_ for id_ in moved if repr(here.get(id_)) != repr(stood.get(id_))]
    conflicts = [id_ for id_ in moved if repr(here.get(id_)) != repr(left.get(id_))]
    if decision.outcome is Outcome.DEAD:
        return []
    wanted = Outcome.CONFLICTS if conflicts else Outcome.SUCCESS
    that(decision.outcome is wanted, f"{decision.request_id} is {decision.outcome}, with {conflicts} edited since")
    return [] if conflicts else [stood.get(id_) or Remove(id_) for id_ in moved]
