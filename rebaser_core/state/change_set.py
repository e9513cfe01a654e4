"""Folds the commits of a change set into its state, which contains everything that later commits and readers need.

A checkpoint stores the state, except for parts that can be computed from other parts or from the commit that refers to
the checkpoint.

Invariant: the state changes only in `ChangeSetState.fold`, one commit at a time. Servers and readers use the same
function. The cost of an update depends on the values that it touches, never on the size of the change set.

Values are stored in columns (`rebaser_core.state.columns`). As long as a view is open, the columns do not change, so
that another thread can read them. Commits that are folded in the meantime are written to an overlay (module `overlay`).
Once the view is closed, each fold merges a part of the overlay into the columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rebaser_core import thresholds
from rebaser_core.branches.branch import Branch
from rebaser_core.commit import (
    DVU_ATTEMPT,
    PULL_ATTEMPT,
    Applied,
    Attempt,
    BranchStatus,
    CheckpointRef,
    Commit,
    Computed,
    Decision,
    Kind,
    Marking,
)
from rebaser_core.errors import TransientError
from rebaser_core.history import Mark, add_mark
from rebaser_core.ids import RequestId
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.outcomes import REDRIVE_MEMORY_MS, Outcomes, RecordedOutcome, pack, unpack
from rebaser_core.state.overlay import UNSET_CELL, Cell, Cells
from rebaser_core.state.shown import ShownState
from rebaser_core.state.view import View
from rebaser_core.updates import Derive, Recompute, Remove, Update, functions_of
from rebaser_core.values import State, Value

__all__ = ["REDRIVE_MEMORY_MS", "UNSET_CELL", "BrokenChain", "Cell", "ChangeSetState", "RecordedOutcome", "View"]


class BrokenChain(TransientError):  # noqa: N818 - it names a condition
    """A commit does not follow the previous commit. The state has to be loaded again from the newest checkpoint."""

    default_code = "broken_chain"


# Measured sizes in memory (bytes), from which the memory of a state is estimated.
VALUE_BYTES, INPUT_BYTES, OUTCOME_BYTES = 258, 24, 270  # an outcome other than a plain success takes 500

_CREATE, _DVU, _REPLAY = Kind.CREATE, Kind.DVU, Kind.REPLAY  # a lookup of an enum member takes 0.1 µs in Python 3.11


class ChangeSetState(ShownState):
    """The state of one change set after the commit at log sequence `last`.

    Other modules must not change its attributes, which the comments in `__init__` describe. `covers` and `applied` have
    the same meaning as in `Commit`.
    """

    def __init__(self) -> None:
        self.last = 0  # 0 if there is no commit yet
        self.covers = 0
        self.cells = Cells()  # all values by id
        # Maps each value whose dependents are not up to date to the log sequence of the last commit that changed it.
        self.roots: dict[str, int] = {}
        # Maps each recompute that is still due to the log sequence of the last commit that requested it.
        self.recompute: dict[Recompute, int] = {}
        self.applied: Applied | None = None
        self.outcomes = Outcomes()  # does not include those in `redriven`
        self.redriven = Outcomes()  # outcomes of requests that were sent again from the dead letters
        self._forgot_before = 0  # the newest `forget_before_ms` (Unix ms) that was applied
        self.with_result: dict[RequestId, None] = {}  # those whose decision has a `result`, and some that were dropped
        # Attempts that have not succeeded yet. The key is the sequence of a request, `DVU_ATTEMPT` or `PULL_ATTEMPT`.
        self.attempts: dict[int, Attempt] = {}
        self.checkpoint: CheckpointRef | None = None  # the newest checkpoint to which a commit refers
        self.unknown: tuple[str, ...] = ()  # functions that the newest commit's server lacked; not in checkpoints
        self.edited = 0  # the log sequence of the newest commit with edits
        # Checkpoints of earlier releases do not record which commit defined each value, so values from such a
        # checkpoint have an `edited` of 0. They were defined at or before this log sequence.
        self.untracked = 0
        self.marks: list[Mark] = []  # the checkpoints to which commits have referred, oldest first
        self.weight = 0  # bytes of the log, counted as in `Mark`
        self.branch: Branch | None = None  # None unless a request created, closed or deleted the change set
        self.taken: dict[str, int] = {}  # maps each applied branch to the sequence of the last commit that applied it
        self.protected = False  # if true, only applied branches may edit the change set
        self.born_ms = 0  # Unix time of the commit that created the change set; 0 if no commit created it

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether a dependent values update (DVU) is due."""
        return bool(self.roots or self.recompute)

    @property
    def debt(self) -> int:
        """The number of roots and recomputes that no update has covered yet. A header of each commit contains it."""
        return len(self.roots) + len(self.recompute)

    @property
    def memory(self) -> int:
        """An estimate of the memory that this state uses, in bytes."""
        columns = self.cells.columns
        outcomes = len(self.outcomes) + len(self.redriven)
        texts = self.checkpoint.size if self.checkpoint is not None and columns.other else 0
        return len(columns.ids) * VALUE_BYTES + columns.refs_used * INPUT_BYTES + outcomes * OUTCOME_BYTES + texts

    def debt_after(self, covered: int) -> int:
        """Return the `debt` that will remain after an update of derived values that covers log sequence `covered`."""
        if covered >= self.last:
            return 0
        return sum(1 for owed in (self.roots, self.recompute) for sequence in owed.values() if sequence > covered)

    def recorded(self, request_id: RequestId) -> RecordedOutcome | None:
        """Return the outcome of the request `request_id`, or None if it is not decided or its outcome was dropped."""
        packed = self.outcomes.get(request_id) or self.redriven.get(request_id)
        return None if packed is None else unpack(request_id, packed)

    def results(self) -> tuple[str, ...]:
        """Return the addresses of the blobs that are needed to send the recorded replies again."""
        known = [(id_, self.recorded(id_)) for id_ in self.with_result]  # few outcomes have one
        found = {id_: one.decision.result.address for id_, one in known if one is not None and one.decision.result}
        self.with_result = dict.fromkeys(found)
        return tuple(found.values())

    def defined_by(self, id_: str) -> int:
        """Return the log sequence at which `id_` was last defined or removed, or an upper bound if this sequence is
        unknown."""
        if id_ not in self.cells:
            return self.edited  # the state does not record which commit removed an id
        return self.cells.edited(id_) or self.untracked

    def wakes(self, updates: Iterable[Update]) -> bool:
        """Return whether derived values have to be computed after `updates` are applied.

        Removing a value that does not exist has no effect. A `Derive` always counts: its own value has to be computed.
        """
        cells = self.cells
        for update in updates:
            id_, kind = update.id, type(update)
            if kind is Derive or (cells.is_input(id_) and (kind is not Remove or id_ in cells)):
                return True
        return False

    def view(self) -> "View":
        """Return a new view of the current state. The caller must `close` it, or use it as a context manager.

        All open views must show the same commit. Raise `RuntimeError` if a view of an older commit is still open.
        """
        if self.pinned and not self.cells.overlay_empty:
            raise RuntimeError("a view of an older commit is still open; close it before a new one is opened")
        self._merge_all()
        return View(self.cells, self.last, self.covers, dict(self.roots), dict(self.recompute))

    @property
    def pinned(self) -> bool:
        """Whether a view is open, or a thread is still reading a closed view."""
        return self.cells.pins > 0

    def merge_overlay(self, at_most: int) -> bool:
        """Merge up to `at_most` values of the overlay into the columns. Return whether more values remain in the
        overlay."""
        return self.cells.merge_overlay(at_most)

    def stale(self) -> set[str]:
        """Return the ids of the derived values that are not up to date.

        The cost depends on the number of these ids or, if a recompute is due, on the size of the change set.
        """
        self._merge_all()
        if not self.recompute:
            return self.cells.reached(self.roots)
        functions = functions_of(self.recompute)
        recomputed = self.cells.derived(functions)
        return set(recomputed) if functions is None else self.cells.reached({*self.roots, *recomputed})

    def value(self, id_: str, stale: set[str]) -> Value | None:
        """Return the value of `id_`, or None if it does not exist. `stale` is the result of the method `stale`."""
        value = self.cells.value(id_)
        return Value(value.value, State.STALE, None) if value is not None and id_ in stale else value

    def values(self) -> dict[str, Value]:
        """Return all values by id. Derived values that are not up to date have the state `stale`."""
        stale = self.stale()
        return {
            id_: Value(value.value, State.STALE, None) if id_ in stale else value
            for id_, value in self.cells.iter_values()
        }

    def updates(self) -> Iterator[Update]:
        """Return updates that recreate all values and definitions in an empty change set."""
        return self.cells.updates()

    # -- deletion --------------------------------------------------------------------------------------------------

    @property
    def status(self) -> BranchStatus:
        """The status of the change set, which says whether it accepts edits."""
        return BranchStatus.OPEN if self.branch is None else self.branch.status

    def replaced_by(self, commit: Commit) -> bool:
        """Return whether `commit` replaces the whole state, because it creates, deletes or restores the change set."""
        marking = commit.marking
        return commit.kind is Kind.CREATE or (marking is not None and marking.deletes) or self._restored_by(commit)

    def _restored_by(self, commit: Commit) -> bool:
        opens = commit.marking is not None and commit.marking.status is BranchStatus.OPEN
        return opens and self.status is BranchStatus.DELETED

    def emptied(self) -> "ChangeSetState":
        """Return the state without values that this change set has after its deletion, at the same log sequence.

        The result keeps what is known about the queue and the log, so that no request is decided twice and the history
        remains readable. For readers, it also keeps the target and the origin.
        """
        empty = ChangeSetState()
        empty._take_queue(self)
        empty.marks, empty.weight = list(self.marks), self.weight
        empty.checkpoint, empty.born_ms = self.checkpoint, self.born_ms
        empty.branch = replace(self.branch or Branch(0), changes={}, conflicts={}, status=BranchStatus.DELETED)
        return empty

    def restore(self, deleted: "ChangeSetState") -> None:
        """Turn this state, which the change set had before its deletion, into the state that it has after it is
        restored. The log sequence and what is known about the queue are taken from `deleted`, the state of the deleted
        change set."""
        self._take_queue(deleted)
        self.branch = replace(self.branch or Branch(0), status=BranchStatus.OPEN)

    def _take_queue(self, other: "ChangeSetState") -> None:
        self.last = other.last
        if not self.owes:
            self.covers = other.last
        self.applied, self.attempts, self.with_result = other.applied, dict(other.attempts), dict(other.with_result)
        self.outcomes, self.redriven, self._forgot_before = Outcomes(other.outcomes), Outcomes(other.redriven), 0

    # -- folding ---------------------------------------------------------------------------------------------------

    def fold(self, sequence: int, commit: Commit, weight: int = 0) -> None:
        """Apply the commit at log sequence `sequence`, whose delta must be loaded. `weight` is the number of bytes that
        the commit adds to the log.

        A `create` commit is folded into the state of its parent or, if it has no parent, into an empty state. If the
        commit does not follow `last`, raise `BrokenChain` and change nothing.
        """
        for _ in self.fold_in_steps(sequence, commit, weight):
            pass

    def fold_in_steps(self, sequence: int, commit: Commit, weight: int = 0) -> Iterator[None]:
        """Do the same as `fold`, but yield after every `fold_step` edits. Until the generator ends, the state
        corresponds to no commit."""
        if commit.marking is not None and self._restored_by(commit):
            raise BrokenChain(f"commit {sequence} restores a deleted change set, so its checkpoint must be loaded")
        if (commit.follows if commit.kind is _CREATE else commit.previous) != self.last or sequence <= self.last:
            raise BrokenChain(f"commit {sequence} follows {commit.follows}, but the state is at {self.last}")
        if commit.kind is _CREATE:
            self._begin(sequence, commit)
        elif commit.kind is _DVU:
            self._apply_computed(commit)
        else:
            yield from self._apply_edits(sequence, commit)
        previous, self.last = self.last, sequence
        self.weight += weight
        self.unknown = commit.unknown
        self.covers = sequence if commit.covers is None else commit.covers
        if commit.covers is None or (commit.kind is _DVU and commit.covers >= previous):
            self.roots.clear()
            self.recompute.clear()
        elif commit.kind is _DVU:
            self.roots = {id_: touched for id_, touched in self.roots.items() if touched > commit.covers}
            self.recompute = {recompute: asked for recompute, asked in self.recompute.items() if asked > commit.covers}
        self._record(sequence, commit)

    def _begin(self, sequence: int, commit: Commit) -> None:
        """Turn the parent's state into the state of a new change set, which has its own queue and log."""
        self.branch = Branch.of(sequence, commit.origin, commit.status, self.branch)
        self.edited, self.born_ms = sequence, commit.at_ms
        self.applied = self.checkpoint = None
        self.outcomes, self.redriven, self.attempts, self.with_result = Outcomes(), Outcomes(), {}, {}
        self.marks, self.weight, self.taken, self.protected, self._forgot_before = [], 0, {}, False, 0
        for carried in commit.carried:
            self.remember(carried.decision, carried.commit, carried.at_ms)

    def skip(self, sequence: int) -> None:
        """Skip the message at log sequence `sequence`, because it is not a commit."""
        self.last = sequence

    def _apply_edits(self, sequence: int, commit: Commit) -> Iterator[None]:
        self.cells.merge_overlay(thresholds.now.overlay_merge_per_commit)
        apply, roots, branch, step = self.cells.apply, self.roots, self.branch, thresholds.now.fold_step
        delta: Sequence[Any] = commit.delta  # all of them are updates, because the commit is not of the kind `dvu`
        takes_over = branch.take if branch is not None and commit.kind is _REPLAY else None
        for start in range(0, len(delta), step):
            if start:
                yield
            for update in delta if len(delta) <= step else delta[start : start + step]:
                if takes_over:
                    takes_over(update.id)
                elif branch is not None:
                    branch.edit(update.id, self.cells.edit_of)
                if apply(update, sequence):
                    roots[update.id] = sequence
        if commit.delta:
            self.edited = sequence
        if branch is not None:
            yield from branch.fold(sequence, commit, self.cells.edit_of, step)
        for recompute in commit.recompute:
            if recompute.function is None:
                self.recompute.clear()  # this recompute concerns all functions, so it includes all earlier recomputes
            self.recompute[recompute] = sequence

    def _apply_computed(self, commit: Commit) -> None:
        self._merge_all()
        if isinstance(commit.delta, ComputedTable):
            self.cells.store_results(commit.delta)
            return
        for item in commit.delta:
            assert type(item) is Computed  # noqa: S101 - the decoder ensures it
            self.cells.store_result(item.id, item.value, item.fault)  # this ignores ids that no longer exist

    def _merge_all(self) -> None:
        while self.cells.merge_overlay(thresholds.now.overlay_merge_per_commit):
            pass

    def _record(self, sequence: int, commit: Commit) -> None:
        if commit.applied is not None:
            new_epoch = self.applied is None or self.applied.stream != commit.applied.stream
            self.applied = commit.applied
            attempts, decided = self.attempts, commit.applied.sequence
            for tried in [s for s in attempts if s > DVU_ATTEMPT and (new_epoch or s <= decided)] if attempts else ():
                del attempts[tried]
        if commit.kind is _DVU:
            self.attempts.pop(DVU_ATTEMPT, None)
        if commit.kind is _REPLAY:
            self.attempts.pop(PULL_ATTEMPT, None)
        for decision in commit.requests:
            self.remember(decision, sequence, commit.at_ms)
        if commit.source is not None and commit.kind is Kind.REBASE:
            self.taken[commit.source.change_set] = sequence
        if commit.marking is not None:
            self._mark(commit.marking)
        if commit.attempt is not None:
            self._record_attempt(commit.attempt)
        if commit.checkpoint is not None:
            self.checkpoint = commit.checkpoint
            if not self.marks or commit.checkpoint.sequence > self.marks[-1].sequence:
                add_mark(self.marks, commit.checkpoint, sequence, commit.at_ms, self.weight)
        before = commit.forget_before_ms
        # Commits without requests have no such time. While it stays the same, only the outcomes of this commit can be
        # older than it, and only if its clock is wrong.
        if before and (before != self._forgot_before or commit.at_ms < before):
            self._forgot_before = before
            self.outcomes.forget(before)
            self.redriven.forget(before - REDRIVE_MEMORY_MS)

    def _record_attempt(self, attempt: Attempt) -> None:
        if attempt.count or attempt.deaths:
            self.attempts[attempt.sequence] = attempt
        else:
            self.attempts.pop(attempt.sequence, None)  # both counts are 0, so no failed attempt remains

    def _mark(self, marking: Marking) -> None:
        if marking.protected is not None:
            self.protected = marking.protected
        if marking.status is not None:
            self.branch = replace(self.branch or Branch(0), status=marking.status)
        if marking.deletes:
            self._empty()

    def _empty(self) -> None:
        """Remove all values and everything that is recorded about them."""
        self.cells, self.roots, self.recompute = Cells(), {}, {}
        self.edited = self.untracked = 0
        self.taken = {}
        if self.branch is not None:
            self.branch.changes, self.branch.conflicts = {}, {}

    def remember(self, decision: Decision, commit: int, at_ms: int) -> None:
        """Record an outcome as the newest one. Only `fold` and readers of checkpoints call this. For the arguments, see
        `RecordedOutcome`."""
        request_id = decision.request_id
        if request_id:
            self.outcomes.pop(request_id, None)
            self.redriven.pop(request_id, None)
            (self.redriven if decision.redrive else self.outcomes)[request_id] = pack(decision, commit, at_ms)
            if decision.result is not None:
                self.with_result[request_id] = None
