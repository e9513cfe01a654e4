"""Folds a partly damaged log, and reports what a repair would lose. This module does no I/O.

Invariant: an undamaged log folds exactly as every other reader folds it. Each defect is reported as one finding. No
request is applied twice, even if parts of the log are missing or repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from rebaser.doctor.log_message import CommitSummary, LogMessage, summarize_commit
from rebaser_core.commit import Applied, Commit, Kind, Outcome
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Recompute

CommitIdentity: TypeAlias = tuple[str, int]

MAY_DECIDE = (
    None,
    Kind.REBASE,
    Kind.REPLAY,
    Kind.MARK,
)  # kinds of commits that may decide requests; None: the kind is unknown


def commit_identity(commit: Commit) -> CommitIdentity:
    """Return the id of a commit, and the sequence of the commit before it. Together, they identify the commit."""
    return commit.id, commit.previous


class Cost(Enum):
    """What a repair loses because of a finding."""

    NOTHING = "nothing"
    EDITS = "edits"
    UNKNOWN = "unknown"  # possibly edits, possibly nothing


@dataclass(slots=True)
class Finding:
    """A defect of the log at `sequence`. `cost` is what a repair loses because of it. `summary` has the readable parts
    of the commit at that sequence, if there is one. `time_ns` is the time at which it was stored (Unix ns).

    `problem` is the predicate of a sentence about the message, such as "is damaged: …".
    """

    sequence: int
    problem: str
    cost: Cost = Cost.NOTHING
    summary: CommitSummary | None = None
    time_ns: int = 0


class History:
    """Folds a log, message by message, into `state`, which it changes.

    `queue` has the creation time and the last sequence of the stream of requests: a commit that claims to decide later
    requests is damaged. `known` maps the commits that `state` already contains to their log sequences, as far as these
    commits can be read.

    `findings` are in log order. `intact_until` is the log sequence up to which the log is intact. `carried` is the
    number of commits folded after `intact_until`.
    """

    def __init__(self, state: ChangeSetState, queue: Applied, known: Mapping[CommitIdentity, int]) -> None:
        self.state = state
        self.findings: list[Finding] = []
        self.intact_until = state.last
        self.carried = 0
        self._queue = queue
        self._known_commits = dict(known)
        # The findings whose cost is unknown, each with the value of `applied` before it. The next readable commit shows
        # what they cost.
        self._unsettled: list[tuple[Finding, Applied | None]] = []

    def foreign(self, message: LogMessage) -> None:
        """Skip a message that is not a commit, like every reader."""
        self._skip(message.sequence)

    def damaged(self, message: LogMessage) -> None:
        """Skip a commit that cannot be read, and report it."""
        summary = message.summary()
        trusted, applied = summary.applied_known and self._plausible(summary.applied), summary.applied
        if trusted:
            self._settle_costs(summary.kind, applied)
        if not self.state.last and summary.previous != 0:
            problem = f"is damaged, and there is neither a commit nor a checkpoint before it: {message.reason}"
            cost = Cost.EDITS if summary.previous or trusted else Cost.UNKNOWN
            self._report(message, problem, cost, summary)
            self._skip_damaged(message, applied if trusted else None)
            return
        if summary.kind is Kind.CREATE:  # all inherited values are lost
            cost = Cost.EDITS
        elif summary.kind not in MAY_DECIDE or (trusted and applied == self.state.applied):
            cost = Cost.NOTHING
        else:
            cost = Cost.EDITS if trusted or summary.kind is not None else Cost.UNKNOWN
        self._report(message, f"is damaged: {message.reason}", cost, summary)
        self._skip_damaged(message, applied if trusted else None)

    def commit(self, message: LogMessage, commit: Commit, problem: str = "") -> None:
        """Fold `commit`, which `message` contains. If its delta could not be loaded, `problem` says why."""
        state, sequence = self.state, message.sequence
        identity = commit_identity(commit)
        if commit.follows != state.last:
            if message.unlabelled:
                self._skip(sequence)
                return
            if not self._accept_out_of_order(message, commit):
                self._skip(sequence)
                return
            if commit.kind is Kind.CREATE:
                state.skip(commit.follows)
            commit = replace(commit, previous=state.last)
        self._settle_costs(commit.kind, commit.applied)
        if message.reason:
            self._report(message, f"has damaged headers: {message.reason}", Cost.NOTHING, summarize_commit(commit))
        if problem:
            edits = commit.kind in (Kind.REBASE, Kind.REPLAY)
            self._report(message, problem, Cost.EDITS if edits else Cost.NOTHING, summarize_commit(commit))
            # Without the delta, the edits are lost. The outcomes of the requests that made them are dropped too, so
            # that these requests can be sent again, an applied branch can be applied again, and a branch takes over the
            # edits of its target again.
            without_edits = tuple(decision for decision in commit.requests if not decision.performed)
            kind = Kind.REBASE if edits else commit.kind
            lost: dict[str, Any] = {"delta": (), "delta_blob": None, "source": None, "replay": None, "settled": ()}
            status = None if commit.kind is Kind.REPLAY else commit.status
            commit = replace(commit, kind=kind, status=status, requests=without_edits, **lost)
        if commit.marking is not None and not commit.marking.deletes and state.replaced_by(commit):
            text = "brings back the deleted values, from a checkpoint that cannot be read"
            self._report(message, text, Cost.EDITS, summarize_commit(commit))
            state.restore(state)
        self._known_commits.setdefault(identity, sequence)
        state.fold(sequence, commit)
        if self.findings:
            self.carried += not problem and not message.reason
        else:
            self.intact_until = sequence

    def finish(self) -> ChangeSetState:
        """Return the folded state. If there are findings, mark all its derived values for recomputation."""
        state = self.state
        if self.findings:
            derives = next(state.cells.derived(), None) is not None
            sequence = state.last
            state.skip(sequence - 1)
            recompute = (Recompute(),) if derives else ()
            repair = self._synthetic_commit(Kind.REBASE, covers=0 if derives else None, recompute=recompute)
            state.fold(sequence, repair)
        return state

    # -- commits out of order --------------------------------------------------------------------------------------

    def _accept_out_of_order(self, message: LogMessage, commit: Commit) -> bool:
        """Report that `commit` does not follow the last folded commit. Return whether to fold it nevertheless."""
        state, summary = self.state, summarize_commit(commit)
        copy_of = self._known_commits.get(commit_identity(commit))
        if copy_of is not None:
            self._report(message, f"is a copy of commit {copy_of}", Cost.NOTHING, summary)
            return False
        if self._applies_again(commit):
            problem = (
                f"follows commit {commit.previous}, not {state.last}, and decides requests that were decided before"
            )
            self._report(message, problem, Cost.EDITS, summary)
            return False
        predecessor_missing = state.last < commit.previous < message.sequence
        if predecessor_missing and not state.last:
            problem = "is missing, with all commits before it and every checkpoint of them"
            self.findings.append(Finding(commit.previous, problem, Cost.EDITS))
            return True
        if predecessor_missing:
            problem = f"is missing, though commit {message.sequence} follows it"
            finding = Finding(commit.previous, problem, Cost.UNKNOWN)
        else:
            problem = f"follows commit {commit.previous}, not {state.last}"
            finding = Finding(message.sequence, problem, Cost.UNKNOWN, summary, message.time_ns)
        self.findings.append(finding)
        self._unsettled.append((finding, state.applied))
        return True

    def _applies_again(self, commit: Commit) -> bool:
        """Return whether the commit applies requests that were applied before."""
        before, after = self.state.applied, commit.applied
        same_stream = before is not None and (after is None or after.stream == before.stream)
        decided_through = before.sequence if before is not None and same_stream else 0
        if same_stream and (after is None or after.sequence < decided_through):
            return True
        for decision in commit.requests:
            if decision.outcome is Outcome.SUCCESS and decision.performed:
                recorded = self.state.recorded(decision.request_id)
                if decision.sequence <= decided_through or (recorded and recorded.decision.outcome is Outcome.SUCCESS):
                    return True
        return False

    def _settle_costs(self, kind: Kind | None, applied: Applied | None) -> None:
        """Set the costs that were unknown. `kind` and `applied` belong to the next commit, and show whether the
        unreadable commits before that commit decided any request."""
        for finding, before in self._unsettled:
            if applied == before:
                finding.cost = Cost.NOTHING
            elif kind not in MAY_DECIDE:
                finding.cost = Cost.EDITS
        self._unsettled.clear()

    def _plausible(self, applied: Applied | None) -> bool:
        """Return whether `applied`, read from a damaged commit, can be right. With a wrong value, requests that were
        never decided would be skipped."""
        before, queue = self.state.applied, self._queue
        if applied is None or applied == before:
            return applied == before
        if before is not None and applied.stream == before.stream and applied.sequence < before.sequence:
            return False
        return applied.stream == queue.stream and applied.sequence <= queue.sequence

    def _report(self, message: LogMessage, problem: str, cost: Cost, summary: CommitSummary) -> None:
        finding = Finding(message.sequence, problem, cost, summary, message.time_ns)
        self.findings.append(finding)
        if cost is Cost.UNKNOWN:
            self._unsettled.append((finding, self.state.applied))

    def _skip(self, sequence: int) -> None:
        self.state.skip(sequence)
        if not self.findings:
            self.intact_until = sequence

    def _skip_damaged(self, message: LogMessage, applied: Applied | None) -> None:
        if applied in (None, self.state.applied):
            self._skip(message.sequence)
        else:
            stand_in = self._synthetic_commit(Kind.ATTEMPT, applied=applied, covers=self.state.covers)
            self.state.fold(message.sequence, stand_in)

    def _synthetic_commit(self, kind: Kind, **fields: Any) -> Commit:
        """Return a commit that is not in the log. It is folded in place of a lost commit, or to complete a repair."""
        return Commit("", self.state.last, kind, 0, "", **({"applied": self.state.applied} | fields))
