"""The folded state: what a change set's log adds up to, and exactly what a checkpoint stores.

Invariant: state changes only in `ChangeSetState.fold`, by one commit at a time, and `fold` is the same function for
the owner and for every reader. Applying an update costs what the update touches, never what the change set holds.

Values stand in columns (`rebaser_core.state.columns`). While a view is open the columns are frozen, so that another
thread may work on them at the speed of arrays, and what is folded meanwhile is laid over them
(`rebaser_core.state.overlay`); once it is closed, what was laid over is worked in, a little with each fold.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from rebaser_core import thresholds
from rebaser_core.commit import (
    DVU_ATTEMPT,
    Applied,
    Attempt,
    CheckpointRef,
    Commit,
    Computed,
    Decision,
    Kind,
)
from rebaser_core.errors import TransientError
from rebaser_core.ids import RequestId
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.overlay import UNSET_CELL, Cell, Cells
from rebaser_core.updates import Derive, Recompute, Remove, Update, functions_of
from rebaser_core.values import State, Value

__all__ = ["REDRIVE_MEMORY_MS", "UNSET_CELL", "BrokenChain", "Cell", "ChangeSetState", "RecordedOutcome", "View"]


class BrokenChain(TransientError):  # noqa: N818 - what it is, not who is to blame
    """A commit does not follow the one before it: read again from the newest checkpoint."""

    default_code = "broken_chain"


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """The outcome of a request, kept to answer it again."""

    decision: Decision
    commit: int  # log sequence
    at_ms: int


# How much longer than others the outcome of a redriven request is kept: longer than any dead letter is, so that one
# that was redriven, but could not be deleted any more, is not applied again however late somebody redrives it.
REDRIVE_MEMORY_MS = 31 * 24 * 3600 * 1000

T = TypeVar("T")


class ChangeSetState:
    """State of one change set after the commit at log sequence `last` (0: no commit yet).

    Attributes: `cells` by id; `roots` by id, with the log sequence that last touched it; `recompute`, derived values
    that are owed though nothing touched them, with the log sequence that last asked for them; `covers`; `applied`;
    `outcomes` by request id, oldest first, and `redriven`, the same for requests that came back from the dead letters;
    `attempts` by request sequence, or `DVU_ATTEMPT`; `checkpoint`, the newest one named; `unknown`,
    functions that the writer of the newest commit had not got (in no checkpoint). Treat all as read-only outside this
    module.
    """

    def __init__(self) -> None:
        self.last = 0
        self.covers = 0
        self.cells = Cells()
        self.roots: dict[str, int] = {}
        self.recompute: dict[Recompute, int] = {}
        self.applied: Applied | None = None
        self.outcomes: dict[RequestId, RecordedOutcome] = {}
        self.redriven: dict[RequestId, RecordedOutcome] = {}
        self.attempts: dict[int, Attempt] = {}
        self.checkpoint: CheckpointRef | None = None
        self.unknown: tuple[str, ...] = ()

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether a DVU is due."""
        return bool(self.roots or self.recompute)

    @property
    def debt(self) -> int:
        """How much is owed, 0 for nothing; a commit tells the sweeper."""
        return len(self.roots) + len(self.recompute)

    def debt_after(self, covered: int) -> int:
        """The same once a DVU covers log sequence `covered`."""
        if covered >= self.last:
            return 0
        return sum(1 for owed in (self.roots, self.recompute) for at in owed.values() if at > covered)

    def recorded(self, request_id: RequestId) -> RecordedOutcome | None:
        """The outcome of `request_id`, if it is decided and not forgotten."""
        return self.outcomes.get(request_id) or self.redriven.get(request_id)

    def wakes(self, updates: Iterable[Update]) -> bool:
        """Whether applying `updates` leaves a derived value to be computed.

        As `fold` has it: removing what is not there touches nothing. What the same updates made before has woken.
        """
        cells = self.cells
        return any(
            type(update) is Derive or (cells.is_input(update.id) and (type(update) is not Remove or update.id in cells))
            for update in updates
        )

    def view(self) -> "View":
        """The state as it is now, for as long as the view is open; use as a context manager or `close` it.

        Views that are open at the same time are of the same commit: raises `RuntimeError` where an open one is older.
        """
        return View(self)

    @property
    def pinned(self) -> bool:
        """Whether a view is open, or a thread still at work on one."""
        return self.cells.pins > 0

    def merge_overlay(self, at_most: int) -> bool:
        """Work up to `at_most` values that were folded beside a view into the columns. Whether there are more."""
        return self.cells.merge_overlay(at_most)

    def stale(self) -> set[str]:
        """Ids of derived values that a DVU has yet to bring up to date; costs what they number, or, if some are to be
        recomputed, what there are."""
        self._merge_all()
        if not self.recompute:
            return self.cells.reached(self.roots)
        functions = functions_of(self.recompute)
        again = self.cells.derived(functions)
        return set(again) if functions is None else self.cells.reached({*self.roots, *again})

    def value(self, id_: str, stale: set[str]) -> Value | None:
        """The value of `id_` as a reader should see it, given `stale()`."""
        cell = self.cells.get(id_)
        if cell is None:
            return None
        if id_ in stale:
            return Value(cell.value, State.STALE, None)
        return Value(cell.value, cell.state, cell.fault)

    def values(self) -> dict[str, Value]:
        """All values by id, derived ones that are not yet up to date as `stale`."""
        stale = self.stale()
        return {
            id_: Value(value.value, State.STALE, None) if id_ in stale else value
            for id_, value in self.cells.iter_values()
        }

    def updates(self) -> Iterator[Update]:
        """Updates that rebuild everything set or derived here, in an empty change set."""
        return self.cells.updates()

    # -- folding ---------------------------------------------------------------------------------------------------

    def fold(self, sequence: int, commit: Commit) -> None:
        """Add the commit that stands at log sequence `sequence`; its delta must be loaded.

        Raises `BrokenChain`, with the state untouched, if it does not follow `last`.
        """
        if commit.previous != self.last or sequence <= self.last:
            raise BrokenChain(f"commit {sequence} follows {commit.previous}, the state is at {self.last}")
        if commit.kind is Kind.DVU:
            self._apply_computed(commit)
        else:
            self.cells.merge_overlay(thresholds.now.fold)
            apply, roots = self.cells.apply, self.roots
            for update in commit.delta:
                if apply(update):  # type: ignore[arg-type] # updates, in what is no DVU
                    roots[update.id] = sequence
            for asked in commit.recompute:
                if asked.function is None:
                    self.recompute.clear()  # all includes what was asked for before
                self.recompute[asked] = sequence
        newest, self.last = self.last, sequence
        self.unknown = commit.unknown
        self.covers = sequence if commit.covers is None else commit.covers
        if commit.covers is None or (commit.kind is Kind.DVU and commit.covers >= newest):
            self.roots.clear()
            self.recompute.clear()
        elif commit.kind is Kind.DVU:
            self.roots = {id_: at for id_, at in self.roots.items() if at > commit.covers}
            self.recompute = {asked: at for asked, at in self.recompute.items() if at > commit.covers}
        self._record(sequence, commit)

    def skip(self, sequence: int) -> None:
        """Count a message on the log that is no commit."""
        self.last = sequence

    def _apply_computed(self, commit: Commit) -> None:
        self._merge_all()
        if isinstance(commit.delta, ComputedTable):
            self.cells.compute_all(commit.delta)
            return
        compute = self.cells.compute
        for item in commit.delta:
            assert type(item) is Computed  # noqa: S101 - the decoder gives a DVU nothing else
            compute(item.id, item.value, item.fault)  # its writer drops what is gone; no reader must invent a value

    def _merge_all(self) -> None:
        while self.cells.merge_overlay(thresholds.now.fold):
            pass

    def _record(self, sequence: int, commit: Commit) -> None:
        if commit.applied is not None:
            new = self.applied is None or self.applied.stream != commit.applied.stream
            self.applied = commit.applied
            for over in [
                one for one in self.attempts if one != DVU_ATTEMPT and (new or one <= commit.applied.sequence)
            ]:
                del self.attempts[over]
        if commit.kind is Kind.DVU:
            self.attempts.pop(DVU_ATTEMPT, None)
        for decision in commit.requests:
            self.remember(RecordedOutcome(decision, sequence, commit.at_ms))
        if commit.attempt is not None:
            if commit.attempt.count or commit.attempt.deaths:
                self.attempts[commit.attempt.sequence] = commit.attempt
            else:
                self.attempts.pop(commit.attempt.sequence, None)  # taken back: nothing is held against it
        if commit.checkpoint is not None:
            self.checkpoint = commit.checkpoint
        _forget(self.outcomes, commit.forget_before_ms)
        _forget(self.redriven, commit.forget_before_ms - REDRIVE_MEMORY_MS)

    def remember(self, recorded: RecordedOutcome) -> None:
        """Record an outcome as the youngest; for `fold`, and for who reads a checkpoint."""
        request_id = recorded.decision.request_id
        if request_id:
            self.outcomes.pop(request_id, None)
            self.redriven.pop(request_id, None)
            (self.redriven if recorded.decision.redrive else self.outcomes)[request_id] = recorded


def _forget(outcomes: dict[RequestId, RecordedOutcome], before_ms: int) -> None:
    while outcomes:
        oldest = next(iter(outcomes.values()))
        if oldest.at_ms >= before_ms:
            break
        del outcomes[oldest.decision.request_id]


class View:
    """A `ChangeSetState` as it was when the view was opened.

    `columns` has all values of it; nothing writes there until the view is closed. Other threads work on it within
    `run`, and one that is still at work when the view is closed keeps the columns as they are until it ends.
    """

    def __init__(self, state: ChangeSetState) -> None:
        cells = state.cells
        if cells.pins and not cells.overlay_empty:
            raise RuntimeError("a view of an older commit is open")
        state._merge_all()  # noqa: SLF001 - view and state are two halves of one thing
        cells.pins += 1
        self.sequence = state.last
        self.covers = state.covers
        self.roots = dict(state.roots)
        self.recompute = dict(state.recompute)
        self.columns = cells.columns
        self._cells = cells
        self._open = True
        self._users: list[None] = []  # threads within `run`; appending and popping is atomic
        self._hold = [None]  # whoever gets it out ends the freeze

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the columns go. Reading the view afterwards gives no particular state."""
        self._open = False
        self._let_go()

    def _let_go(self) -> None:
        if self._open or self._users:
            return
        with suppress(IndexError):
            self._hold.pop()
            self._cells.pins -= 1

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """`function(*args)`, for another thread. Raises `RuntimeError` if the view was closed before that."""
        self._users.append(None)
        try:
            if not self._open:  # looked at after this thread was counted, as `close` counts after it closed
                raise RuntimeError("the view is closed")
            return function(*args)
        finally:
            self._users.pop()
            self._let_go()

    def cell(self, id_: str) -> Cell | None:
        """The cell at `id_`, or None."""
        return self._cells.base_cell(id_)

    def ids(self) -> list[str]:
        """Every id that exists in this view."""
        ids = self.columns.ids
        return [ids[row] for row in self.columns.rows().tolist()]
