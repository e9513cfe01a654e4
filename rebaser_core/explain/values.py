"""Explains one value of a state: its definition and inputs, the values that depend on it, and why it is stale or in
error.

Invariant: the size of an explanation is bounded, even in a large change set, because the lists of inputs and dependents
and the path are truncated. The counts of inputs and dependents include those that are cut off.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

from rebaser_core.state.patterns.globs import matcher
from rebaser_core.updates import PATTERN_PREFIX, Derive, Match, Update, functions_of
from rebaser_core.values import Fault, State, Value

if TYPE_CHECKING:  # at run time, this import would load NumPy
    from rebaser_core.state.change_set import ChangeSetState

MAX_LISTED = 100  # the maximum number of inputs, of dependents, and of steps of a path
MAX_VISITED = 20_000  # the maximum number of values that the search for a path examines

ADVICE = {
    "cycle": "redefine one of the values on the path, so that none depends on itself",
    "missing_input": "define the input, or remove it from the definition",
    "unknown_function": "install the plug-in that has the function on the servers (`rebaser functions --servers`)",
    "failed": "correct the definition, or the values of its inputs",
    "crashed": "look for a function that needs too much memory, or that terminates its process",
    "not_finite": "correct the inputs: results must be finite numbers",
    "overflow": "correct the inputs: integers must fit into 64 bits",
    "too_large": "change the definition so that its result is smaller",
}


@dataclass(frozen=True, slots=True)
class ValueInput:
    """An input of a definition. `name` is the name of the input, and `id` is either the id of a value or a pattern.

    `value` is None if the input is a pattern, or if the value does not exist. `matches` is the number of values that
    match the pattern, or None if the input is not a pattern.
    """

    name: str
    id: str
    value: Value | None = None
    matches: int | None = None


@dataclass(frozen=True, slots=True)
class ValueExplanation:
    """The explanation of one value.

    - `definition` is the update that recreates the value. `defined` is the log sequence of the commit that last defined
      the value, or 0 if this commit is unknown.
    - `inputs` are the first inputs of the definition, and `input_count` is the number of all inputs. `dependents` are
      the ids of the first values whose definitions have this value as an input, and `dependent_count` is the number of
      all such values.
    - `why` is a sentence that gives the reason for the state of the value, and `advice` says what to do.
    - `origin` is the id of the value that causes this value to be stale, because it changed, or to be in error, because
      it fails itself. It is empty if this value is neither stale nor in error. If this value is stale, `origin_commit`
      is the log sequence of the change.
    - `path` contains the ids on a path from this value, through inputs, to `origin`. If no path was found within the
      limits, it contains only the two ends.
    """

    id: str
    value: Value
    definition: Update
    defined: int
    why: str
    advice: str = ""
    inputs: tuple[ValueInput, ...] = ()
    input_count: int = 0
    dependents: tuple[str, ...] = ()
    dependent_count: int = 0
    path: tuple[str, ...] = ()
    origin: str = ""
    origin_commit: int = 0


def explain_value(state: "ChangeSetState", id_: str, stale: set[str] | None = None) -> ValueExplanation | None:
    """Return the explanation of the value `id_` in `state`, or None if the value does not exist.

    `stale` is the result of `state.stale()`, whose cost may depend on the size of the change set; by default, it is
    computed.
    """
    stale = state.stale() if stale is None else stale
    value, definition = state.value(id_, stale), state.cells.edit_of(id_)
    if value is None or definition is None:
        return None
    finder = _Finder(state, stale)
    why, advice, path, commit = finder.trouble(id_, value)
    inputs = list(finder.inputs(id_))
    dependents = state.cells.dependents(id_)
    return ValueExplanation(
        id_,
        value,
        definition,
        state.cells.edited(id_),
        why,
        advice,
        tuple(inputs[:MAX_LISTED]),
        len(inputs),
        tuple(nsmallest(MAX_LISTED, dependents)),  # other threads get their turn, unlike while a million ids are sorted
        len(dependents),
        path,
        path[-1] if path else "",
        commit,
    )


def matching(state: "ChangeSetState", match: Match) -> list[str]:
    """Return the ids of the values in `state` that match the pattern `match`, which must be an input of a value in
    `state`.

    The caller must have called `state.stale()`.
    """
    columns = state.cells.columns  # computing `stale` has merged the overlay into the columns
    if columns.patterns is None:
        return []
    return [columns.ids[row] for row in columns.patterns.rows(PATTERN_PREFIX + match.glob).tolist()]


class _Finder:
    """Finds inputs, reasons and paths in a state. `stale` contains the ids of its stale values."""

    def __init__(self, state: "ChangeSetState", stale: set[str]) -> None:
        self._state = state
        self._stale = stale

    def inputs(self, id_: str) -> Iterator[ValueInput]:
        """Yield the inputs of the definition of `id_`, in the order of the definition."""
        definition = self._definition(id_)
        if definition is None:
            return
        for name, given in definition.inputs.items():
            for one in (given,) if isinstance(given, (str, Match)) else given:
                if isinstance(one, Match):
                    yield ValueInput(name, one.glob, None, len(matching(self._state, one)))
                else:
                    yield ValueInput(name, one, self._state.value(one, self._stale))

    def trouble(self, id_: str, value: Value) -> tuple[str, str, tuple[str, ...], int]:
        """Return the fields `why`, `advice`, `path` and `origin_commit` of the explanation of `id_`, whose value is
        `value`."""
        if value.state is State.STALE:
            return self._stale_trouble(id_)
        if value.state is State.ERROR and value.error is not None:
            return *self._fault_trouble(id_, value.error), 0
        if value.state is State.UNSET:
            return "It exists, but has no value", "set it to a value", (), 0
        if self._definition(id_) is None:
            return "It was set", "", (), 0
        return f"It was computed, and is correct as of commit {self._state.covers}", "", (), 0

    def _stale_trouble(self, id_: str) -> tuple[str, str, tuple[str, ...], int]:
        state, asked = self._state, self._asked()
        path = self._path(id_, lambda one: one in state.roots or one in asked, lambda one: one in self._stale)
        advice = "wait for the update; `rebaser explain WS CS` shows why it waits"
        if not path:
            return "It is not up to date, because a value that it depends on changed", advice, (), 0
        origin = path[-1]
        if origin in state.roots:
            verb = "was defined" if origin == id_ else "changed"
            name = "it" if origin == id_ else origin
            return (
                f"It is not up to date: {name} {verb} in commit {state.roots[origin]}",
                advice,
                path,
                state.roots[origin],
            )
        return f"It is not up to date: a recompute of {origin} was requested", advice, path, 0

    def _fault_trouble(self, id_: str, fault: Fault) -> tuple[str, str, tuple[str, ...]]:
        origin = self._state.value(fault.origin, self._stale)
        first = fault if origin is None or origin.error is None else origin.error
        advice = ADVICE.get(first.code, "correct the cause that the message describes")
        if fault.code == "cycle" or first.code == "cycle":
            path = self._cycle(id_, fault.origin)
        else:
            path = self._path(id_, lambda one: one == fault.origin, lambda one: self._fails_for(one, fault.origin))
        path = path or tuple(dict.fromkeys((id_, fault.origin)))
        reason = first.message or first.code
        if fault.origin == id_:
            return f"It fails by itself: {reason}", advice, path
        return f"{fault.origin}, on which it depends, fails: {reason}", advice, path

    def _fails_for(self, id_: str, origin: str) -> bool:
        value = self._state.cells.value(id_)
        return value is not None and value.error is not None and value.error.origin == origin

    def _cycle(self, id_: str, origin: str) -> tuple[str, ...]:
        """Return the path from `id_` to `origin`, followed by the path around the cycle back to `origin`."""
        failing = State.ERROR

        def fails(one: str) -> bool:
            value = self._state.cells.value(one)
            return value is not None and value.state is failing

        there = (id_,) if id_ == origin else self._path(id_, lambda one: one == origin, fails)
        for first in self._input_ids(origin):
            around = (first,) if first == origin else self._path(first, lambda one: one == origin, fails)
            if around:
                return (*there, *around)[:MAX_LISTED]
        return there

    def _path(self, id_: str, is_end: Callable[[str], bool], leads_on: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the shortest path from `id_`, through inputs, to an id for which `is_end` is true.

        `leads_on` is true for each id between the two ends. Return an empty path if no path is found within the limits.
        """
        came_from: dict[str, str] = {id_: ""}
        todo = [id_]
        for one in todo:  # the loop appends to this list
            if is_end(one):
                path = [one]
                while came_from[path[-1]]:
                    path.append(came_from[path[-1]])
                return tuple(path[::-1]) if len(path) <= MAX_LISTED else (id_, one)
            for next_ in self._input_ids(one):
                if next_ not in came_from and len(came_from) < MAX_VISITED and (is_end(next_) or leads_on(next_)):
                    came_from[next_] = one
                    todo.append(next_)
        return ()

    def _input_ids(self, id_: str) -> Iterator[str]:
        """Yield the ids of the inputs of `id_`. For a pattern, yield the ids that match the pattern. The result
        includes ids of removed values, as long as the values that depend on them have not been updated."""
        definition = self._definition(id_)
        if definition is None:
            return
        for given in definition.inputs.values():
            for one in (given,) if isinstance(given, (str, Match)) else given:
                if isinstance(one, Match):
                    matches = matcher(one.glob)
                    yield from (root for root in self._state.roots if matches(root))
                    yield from matching(self._state, one)
                else:
                    yield one

    def _definition(self, id_: str) -> Derive | None:
        found = self._state.cells.edit_of(id_)
        return found if isinstance(found, Derive) else None

    def _asked(self) -> set[str]:
        """Return the ids of the derived values that a due recompute concerns."""
        recompute = self._state.recompute
        return set(self._state.cells.derived(functions_of(recompute))) if recompute else set()
