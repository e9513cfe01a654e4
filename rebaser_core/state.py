"""The folded state: what a change set's log adds up to, and exactly what a checkpoint stores.

Invariant: state changes only in `ChangeSetState.fold`, by one commit at a time, and `fold` is the same function for
the owner and for every reader. Applying an update costs what the update touches, never what the change set holds.

A DVU plans on a `View` (the state at one commit) while later commits are folded. `fold` saves what it is about to
overwrite into every open view first, and a view looks there last; so a thread may read a view while the loop folds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self, TypeAlias

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
from rebaser_core.updates import Derive, Remove, Set, Unset, Update
from rebaser_core.values import Fault, Json, State, Value


class BrokenChain(TransientError):  # noqa: N818 - what it is, not who is to blame
    """A commit does not follow the one before it: read again from the newest checkpoint."""

    default_code = "broken_chain"


@dataclass(frozen=True, slots=True)
class Cell:
    """One stored value. Replaced, never changed, so that a view may keep it.

    `state` is `ok`, `error` or `unset`, or `stale` for a derived value that no DVU has computed yet.
    """

    value: Json
    state: State
    fault: Fault | None = None
    definition: Derive | None = None
    inputs: tuple[str, ...] = ()  # distinct input ids of the definition


@dataclass(frozen=True, slots=True)
class Recorded:
    """The outcome of a request, kept to answer it again."""

    decision: Decision
    commit: int  # log sequence
    at_ms: int


# How much longer than others the outcome of a redriven request is kept: longer than any dead letter is, so that one
# that was redriven, but could not be deleted any more, is not applied again however late somebody redrives it.
REDRIVE_MEMORY_MS = 31 * 24 * 3600 * 1000

Dependents: TypeAlias = set[str]
_NONE: frozenset[str] = frozenset()
UNSET_CELL = Cell(None, State.UNSET)


class ChangeSetState:
    """State of one change set after the commit at log sequence `last` (0: no commit yet).

    Attributes: `cells` by id; `dependents` by input id, ids that do not exist yet included; `roots` by id, with the
    log sequence that last touched it; `covers`; `applied`; `outcomes` by request id, oldest first, and `redriven`, the
    same for requests that came back from the dead letters; `attempts` by request sequence, or `DVU_ATTEMPT`;
    `checkpoint`, the newest one named. Treat all as read-only outside this module.
    """

    def __init__(self) -> None:
        self.last = 0
        self.covers = 0
        self.cells: dict[str, Cell] = {}
        self.dependents: dict[str, Dependents] = {}
        self.roots: dict[str, int] = {}
        self.applied: Applied | None = None
        self.outcomes: dict[str, Recorded] = {}
        self.redriven: dict[str, Recorded] = {}
        self.attempts: dict[int, Attempt] = {}
        self.checkpoint: CheckpointRef | None = None
        self._views: list[View] = []

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether a DVU is due."""
        return bool(self.roots)

    def recorded(self, request_id: str) -> Recorded | None:
        """The outcome of `request_id`, if it is decided and not forgotten."""
        return self.outcomes.get(request_id) or self.redriven.get(request_id)

    def wakes(self, updates: Iterable[Update]) -> bool:
        """Whether applying `updates` leaves a derived value to be computed.

        As `fold` has it: removing what is not there touches nothing. What the same updates made before has woken.
        """
        dependents, cells = self.dependents, self.cells
        return any(
            type(update) is Derive or (update.id in dependents and (type(update) is not Remove or update.id in cells))
            for update in updates
        )

    def view(self) -> "View":
        """The state as it is now, for as long as the view is open; use as a context manager or `close` it."""
        view = View(self)
        self._views.append(view)
        return view

    def stale(self) -> set[str]:
        """Ids of derived values that a DVU has yet to bring up to date; costs what they number."""
        found = {id_ for id_ in self.roots if (cell := self.cells.get(id_)) and cell.definition}
        todo = list(self.roots)
        while todo:
            for dependent in self.dependents.get(todo.pop(), _NONE):
                if dependent not in found:
                    found.add(dependent)
                    todo.append(dependent)
        return found

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
            id_: Value(cell.value, State.STALE if id_ in stale else cell.state, None if id_ in stale else cell.fault)
            for id_, cell in self.cells.items()
        }

    def updates(self) -> Iterator[Update]:
        """Updates that rebuild everything set or derived here, in an empty change set."""
        for id_, cell in self.cells.items():
            if cell.definition is not None:
                yield cell.definition
            elif cell.state is State.UNSET:
                yield Unset(id_)
            else:
                yield Set(id_, cell.value)

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
            for update in commit.delta:
                self._apply(update, sequence)  # type: ignore[arg-type]
        self.last = sequence
        self.covers = sequence if commit.covers is None else commit.covers
        if commit.covers is None:
            self.roots.clear()
        elif commit.kind is Kind.DVU:
            self.roots = {id_: at for id_, at in self.roots.items() if at > commit.covers}
        self._record(sequence, commit)

    def skip(self, sequence: int) -> None:
        """Count a message on the log that is no commit."""
        self.last = sequence

    def _apply(self, update: Update, sequence: int) -> None:
        id_ = update.id
        old = self.cells.get(id_)
        new: Cell | None
        if type(update) is Set:
            new = Cell(update.value, State.OK)
        elif type(update) is Derive:
            inputs = tuple(dict.fromkeys(update.input_ids()))
            new = Cell(old.value if old else None, State.STALE, None, update, inputs)
        elif type(update) is Unset:
            new = UNSET_CELL
        else:
            new = None
        self._replace(id_, old, new)
        if old is not None or new is not None:
            self.roots[id_] = sequence

    def _replace(self, id_: str, old: Cell | None, new: Cell | None) -> None:
        for view in self._views:
            view.save(id_, old)
        if old is not None and old.inputs:
            for input_id in old.inputs:
                dependents = self.dependents[input_id]
                dependents.discard(id_)
                if not dependents:
                    del self.dependents[input_id]
        if new is None:
            self.cells.pop(id_, None)
            return
        for input_id in new.inputs:
            self.dependents.setdefault(input_id, set()).add(id_)
        self.cells[id_] = new

    def _apply_computed(self, commit: Commit) -> None:
        for item in commit.delta:
            assert type(item) is Computed  # noqa: S101 - the decoder gives a DVU nothing else
            cell = self.cells.get(item.id)
            if cell is None or cell.definition is None:
                continue  # its writer drops these; a reader that meets one must not invent a value
            state = State.OK if item.fault is None else State.ERROR
            for view in self._views:
                view.save(item.id, cell)
            self.cells[item.id] = Cell(item.value, state, item.fault, cell.definition, cell.inputs)

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
            self.remember(Recorded(decision, sequence, commit.at_ms))
        if commit.attempt is not None:
            if commit.attempt.count or commit.attempt.deaths:
                self.attempts[commit.attempt.sequence] = commit.attempt
            else:
                self.attempts.pop(commit.attempt.sequence, None)  # taken back: nothing is held against it
        if commit.checkpoint is not None:
            self.checkpoint = commit.checkpoint
        _forget(self.outcomes, commit.forget_before_ms)
        _forget(self.redriven, commit.forget_before_ms - REDRIVE_MEMORY_MS)

    def remember(self, recorded: Recorded) -> None:
        """Record an outcome as the youngest; for `fold`, and for who reads a checkpoint."""
        request_id = recorded.decision.request_id
        if request_id:
            self.outcomes.pop(request_id, None)
            self.redriven.pop(request_id, None)
            (self.redriven if recorded.decision.redrive else self.outcomes)[request_id] = recorded


def _forget(outcomes: dict[str, Recorded], before_ms: int) -> None:
    while outcomes:
        oldest = next(iter(outcomes.values()))
        if oldest.at_ms >= before_ms:
            break
        del outcomes[oldest.decision.request_id]


class View:
    """A `ChangeSetState` as it was when the view was opened. May be read from one other thread."""

    def __init__(self, state: ChangeSetState) -> None:
        self.sequence = state.last
        self.covers = state.covers
        self.roots = dict(state.roots)
        self._state = state
        self._cells = state.cells
        self._dependents = state.dependents
        self._saved: dict[str, Cell | None] = {}
        self._lost: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop saving for this view. Reading it afterwards gives no particular state."""
        if self in self._state._views:  # noqa: SLF001 - view and state are two halves of one thing
            self._state._views.remove(self)  # noqa: SLF001

    def save(self, id_: str, cell: Cell | None) -> None:
        """Keep what stood at `id_`; called by `fold` before it writes there."""
        if id_ in self._saved:
            return
        self._saved[id_] = cell
        if cell is not None:
            for input_id in cell.inputs:
                self._lost.setdefault(input_id, []).append(id_)

    def cell(self, id_: str) -> Cell | None:
        """The cell at `id_`, or None. The order of the two look-ups is what makes it safe beside a fold."""
        now = self._cells.get(id_)
        return self._saved.get(id_, now)

    def dependents(self, id_: str) -> list[str]:
        """Ids whose definitions name `id_` as an input, in no particular order."""
        live = self._dependents.get(id_)
        found = list(live) if live else []  # one C call: a fold cannot interleave
        if not self._saved:
            return found
        saved = self._saved
        kept = [one for one in found if one not in saved]
        for one in {*self._lost.get(id_, ()), *(one for one in found if one in saved)}:
            cell = saved[one]
            if cell is not None and id_ in cell.inputs:
                kept.append(one)
        return kept

    def ids(self) -> list[str]:
        """Every id that exists in this view."""
        ids = [id_ for id_ in list(self._cells) if id_ not in self._saved]
        ids.extend(id_ for id_, cell in list(self._saved.items()) if cell is not None)
        return ids
