"""What a log adds up to where parts of it are damaged, and what that loses. Pure.

Invariant: a log without damage folds as every reader folds it; each thing that is wrong is one finding; and no request
is applied twice, wherever the log was cut or put together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from rebaser.doctor.entries import Entry, Told, told_of
from rebaser_core.commit import Applied, Commit, Kind, Outcome
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Recompute

CommitName: TypeAlias = tuple[str, int]


def name_of(commit: Commit) -> CommitName:
    """What no two commits share: the id, and what it follows."""
    return commit.id, commit.previous


class Cost(Enum):
    """What a repair cannot bring back."""

    NOTHING = "nothing"
    EDITS = "edits"
    UNKNOWN = "unknown"  # perhaps edits


@dataclass(slots=True)
class Finding:
    """Something that is wrong at log `sequence`: in a few words, and what it costs. `told`: what can be read there."""

    sequence: int
    problem: str
    cost: Cost = Cost.NOTHING
    told: Told | None = None
    time_ns: int = 0


class History:
    """Folds a log on top of `state`, to which it adds.

    `queue`: the stream of requests (creation time) and its last sequence, beyond which nothing can be decided. `known`:
    the commits that `state` stands for, as far as they are known, and where they stand.

    `findings`: in order. `whole_until`: the log sequence up to which nothing is wrong. `carried`: commits folded
    behind that.
    """

    def __init__(self, state: ChangeSetState, queue: Applied, known: Mapping[CommitName, int]) -> None:
        self.state = state
        self.findings: list[Finding] = []
        self.whole_until = state.last
        self.carried = 0
        self._queue = queue
        self._known = dict(known)
        self._doubts: list[tuple[Finding, Applied | None]] = []

    def foreign(self, entry: Entry) -> None:
        """A message that is no commit: skipped, as every reader does."""
        self._pass(entry.sequence)

    def damaged(self, entry: Entry) -> None:
        """A commit that cannot be read."""
        told = entry.told()
        says, applied = told.says_applied and self._plausible(told.applied), told.applied
        if says:
            self._settle_doubts(told.kind, applied)
        if not self.state.last and told.previous != 0:
            problem = f"is damaged, and there is no commit before it, nor a checkpoint: {entry.reason}"
            cost = Cost.EDITS if told.previous or says else Cost.UNKNOWN
            self._find(entry, problem, cost, told)
            self._pass_damaged(entry, applied if says else None)
            return
        if told.kind not in (None, Kind.REBASE) or (says and applied == self.state.applied):
            cost = Cost.NOTHING
        else:
            cost = Cost.EDITS if says or told.kind is Kind.REBASE else Cost.UNKNOWN
        self._find(entry, f"is damaged: {entry.reason}", cost, told)
        self._pass_damaged(entry, applied if says else None)

    def commit(self, entry: Entry, commit: Commit, problem: str = "") -> None:
        """A commit, its delta loaded; `problem`: why its delta could not be."""
        state, sequence, name = self.state, entry.sequence, name_of(commit)
        if commit.previous != state.last:
            if entry.nameless:
                self._pass(sequence)
                return
            if not self._joins(entry, commit):
                self._pass(sequence)
                return
            commit = replace(commit, previous=state.last)
        self._settle_doubts(commit.kind, commit.applied)
        if entry.reason:
            self._find(entry, f"has damaged headers: {entry.reason}", Cost.NOTHING, told_of(commit))
        if problem:
            rebase = commit.kind is Kind.REBASE
            self._find(entry, problem, Cost.EDITS if rebase else Cost.NOTHING, told_of(commit))
            kept = tuple(one for one in commit.requests if not one.performed)
            commit = replace(commit, delta=(), delta_blob=None, requests=kept)
        self._known.setdefault(name, sequence)
        state.fold(sequence, commit)
        if self.findings:
            self.carried += not problem and not entry.reason
        else:
            self.whole_until = sequence

    def finish(self) -> ChangeSetState:
        """The state, all that is derived owed again if anything was wrong."""
        state = self.state
        if self.findings:
            derives = next(state.cells.derived(), None) is not None
            sequence = state.last
            state.skip(sequence - 1)
            recompute = (Recompute(),) if derives else ()
            state.fold(sequence, self._made(Kind.REBASE, covers=0 if derives else None, recompute=recompute))
        return state

    # -- what does not fit -----------------------------------------------------------------------------------------

    def _joins(self, entry: Entry, commit: Commit) -> bool:
        """Whether a commit that does not follow the one before it is folded all the same."""
        state, told = self.state, told_of(commit)
        copy_of = self._known.get(name_of(commit))
        if copy_of is not None:
            self._find(entry, f"is a copy of commit {copy_of}", Cost.NOTHING, told)
            return False
        if self._applies_again(commit):
            problem = f"follows commit {commit.previous}, not {state.last}, and decides what was decided before"
            self._find(entry, problem, Cost.EDITS, told)
            return False
        between = state.last < commit.previous < entry.sequence
        if between and not state.last:
            problem, cost = "is gone, with all before it, and so is every checkpoint of that", Cost.EDITS
            self.findings.append(Finding(commit.previous, problem, cost))
            return True
        finding = Finding(commit.previous, f"is not there, though commit {entry.sequence} follows it", Cost.UNKNOWN)
        if not between:
            finding = Finding(
                entry.sequence, f"follows commit {commit.previous}, not {state.last}", Cost.UNKNOWN, told, entry.time_ns
            )
        self.findings.append(finding)
        self._doubts.append((finding, state.applied))
        return True

    def _applies_again(self, commit: Commit) -> bool:
        before, after = self.state.applied, commit.applied
        same = before is not None and (after is None or after.stream == before.stream)
        reached = before.sequence if before is not None and same else 0
        if same and (after is None or after.sequence < reached):
            return True
        for one in commit.requests:
            if one.outcome is Outcome.SUCCESS and one.performed:
                recorded = self.state.recorded(one.request_id)
                if one.sequence <= reached or (recorded and recorded.decision.outcome is Outcome.SUCCESS):
                    return True
        return False

    def _settle_doubts(self, kind: Kind | None, applied: Applied | None) -> None:
        """Whether anything was decided in what could not be read, as told by the commit behind it."""
        for finding, before in self._doubts:
            if applied == before:
                finding.cost = Cost.NOTHING
            elif kind not in (None, Kind.REBASE):
                finding.cost = Cost.EDITS
        self._doubts.clear()

    def _plausible(self, applied: Applied | None) -> bool:
        """Whether a damaged commit may say so: believed, a wrong one would have good requests passed over."""
        before, queue = self.state.applied, self._queue
        if applied is None or applied == before:
            return applied == before
        if before is not None and applied.stream == before.stream and applied.sequence < before.sequence:
            return False
        return applied.stream == queue.stream and applied.sequence <= queue.sequence

    def _find(self, entry: Entry, problem: str, cost: Cost, told: Told) -> None:
        finding = Finding(entry.sequence, problem, cost, told, entry.time_ns)
        self.findings.append(finding)
        if cost is Cost.UNKNOWN:
            self._doubts.append((finding, self.state.applied))

    def _pass(self, sequence: int) -> None:
        self.state.skip(sequence)
        if not self.findings:
            self.whole_until = sequence

    def _pass_damaged(self, entry: Entry, applied: Applied | None) -> None:
        if applied in (None, self.state.applied):
            self._pass(entry.sequence)
        else:
            self.state.fold(entry.sequence, self._made(Kind.ATTEMPT, applied=applied, covers=self.state.covers))

    def _made(self, kind: Kind, **fields: Any) -> Commit:
        given = {"applied": self.state.applied} | fields
        return Commit("", self.state.last, kind, 0, "", **given)
