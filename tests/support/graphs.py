"""A change set in memory that is edited and updated without a log, and an evaluator that shares no code with the
planner."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rebaser.dvu.functions import FunctionError, registry
from rebaser.dvu.planning.packet_plan import PacketPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.update import still_valid
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core.commit import Applied, Commit, Computed, Kind
from rebaser_core.errors import UnprocessableError
from rebaser_core.state.change_set import ChangeSetState, View
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Input, Match, Recompute, Set, Unset, Update
from rebaser_core.values import Fault, Json, State, Value, canonical, check_json


class Book:
    """A state that is changed by the commits that an owner would write."""

    def __init__(self, updates: Iterable[Update] = ()) -> None:
        self.state = ChangeSetState()
        if given := tuple(updates):
            self.edit(*given)

    def edit(self, *updates: Update, recompute: Iterable[Recompute] = ()) -> None:
        state = self.state
        asked = tuple(recompute)
        settled = not state.owes and not state.wakes(updates) and not asked
        covers = None if settled else state.covers
        applied = Applied("s", state.last + 1)
        self.fold(Commit("e", state.last, Kind.REBASE, 0, "o", applied, covers, delta=updates, recompute=asked))

    def again(self, ids: Iterable[str]) -> list[Update]:
        """Return updates that repeat the definitions of `ids`, unchanged; ids without a definition are left out."""
        definitions = [cell.definition for id_ in ids if (cell := self.state.cells.get(id_)) is not None]
        return [one for one in definitions if one is not None]

    def commit(self, computed: Iterable[Computed], planned_at: int) -> tuple[Computed, ...]:
        state = self.state
        valid = still_valid(state, computed, planned_at)  # type: ignore[arg-type]
        self.fold(Commit("d", state.last, Kind.DVU, 0, "o", None, planned_at, delta=valid))
        return valid  # type: ignore[return-value]

    def fold(self, commit: Commit) -> None:
        """Fold a commit as its writer does."""
        self.state.fold(self.state.last + 1, commit)

    def update(self, limits: Thresholds | None = None) -> tuple[Computed, ...]:
        """Update all derived values, and return those that were written."""
        with self.state.view() as view:
            computed = run_here(view, limits)
            return self.commit(computed, view.sequence)

    def values(self) -> dict[str, Value]:
        return self.state.values()


def run_here(
    view: View, limits: Thresholds | None = None, between: Callable[[], None] = lambda: None
) -> tuple[Computed, ...]:
    """Run an update in this process. `between` is called before each wave is computed."""
    made = plan(view, limits)
    for packets in waves(made):  # type: ignore[arg-type]
        between()
        absorb(made, packets)  # type: ignore[arg-type]
    return made.computed()  # type: ignore[return-value]


def waves(made: PacketPlan) -> Iterable[list[bytes]]:
    while packets := made.next_wave():
        yield packets


def absorb(made: PacketPlan, packets: Sequence[bytes]) -> None:
    results = [result for packet in packets for result in evaluate_packet(packet)]
    random.Random(len(results)).shuffle(results)  # results may arrive in any order
    made.absorb(results)


def typed(values: dict[str, Value]) -> dict[str, tuple[bytes, Any, Any]]:
    """Return the values in a form in which equal means identical: `1`, `1.0` and `True` differ."""
    return {id_: (canonical(value.value), value.state, value.error) for id_, value in values.items()}


def expected(updates: Iterable[Update]) -> dict[str, Value]:
    """Compute every value that should result, by memoised recursion; members of a cycle are ids that reach each other.
    It is slow: for small graphs only."""
    given = {update.id: update for update in updates}

    def members(inputs: Input | Sequence[Input]) -> str | list[str]:
        """Return `inputs` with each pattern replaced by the ids that it matches, found by a separate matcher."""
        if isinstance(inputs, str):
            return inputs
        some = [inputs] if isinstance(inputs, Match) else inputs
        found: list[str] = []
        for one in some:
            found += [one] if isinstance(one, str) else sorted(id_ for id_ in given if fits(one.glob, id_))
        return found

    for id_, one in given.items():
        if isinstance(one, Derive):
            inputs = {name: members(ids) for name, ids in one.inputs.items()}
            if one.function == "by_id" and one.has_match:
                ids = [id_ for some in inputs.values() for id_ in ([some] if isinstance(some, str) else some)]
                given[id_] = Derive(id_, "object", {id_: id_ for id_ in ids})
            else:
                given[id_] = Derive(id_, one.function, inputs, one.params)
    edges = {id_: list(one.input_ids()) if isinstance(one, Derive) else [] for id_, one in given.items()}
    reach = {id_: _reach(id_, edges) for id_ in given}
    done: dict[str, Value] = {}

    def value(id_: str) -> Value:
        if id_ not in done:
            done[id_] = compute(given[id_])
        return done[id_]

    def compute(update: Update) -> Value:
        if isinstance(update, Set):
            return Value(update.value, State.OK)
        if isinstance(update, Unset):
            return Value(None, State.UNSET)
        assert isinstance(update, Derive)
        fault = _cycle_fault(update.id, reach) or input_fault(update)
        if fault is not None:
            return Value(None, State.ERROR, fault)
        args = {
            name: value(ids).value if isinstance(ids, str) else [value(one).value for one in ids]  # type: ignore[arg-type, union-attr]
            for name, ids in update.inputs.items()
        }
        return _call(update, args)

    def input_fault(update: Derive) -> Fault | None:
        if update.function not in registry().functions:
            return Fault("unknown_function", f"there is no function '{update.function}'", update.id)
        for one in update.input_ids():
            if one not in given:
                return Fault("missing_input", f"input '{one}' does not exist", update.id)
            error = value(one).error
            if error is not None:
                origin = value(error.origin).error
                assert origin is not None
                text = f"input '{one}' failed" + ("" if origin.code == "failed" else f": {origin.code}")
                text += "" if error.origin == one else f" in '{error.origin}'"
                return Fault("failed_input", text, error.origin)
        return None

    return {id_: value(id_) for id_ in given}


def fits(glob: str, text: str) -> bool:
    """Return whether `glob` matches `text`, by trying all possibilities."""
    if not glob:
        return not text
    if glob.startswith("**"):
        return any(fits(glob.lstrip("*"), text[at:]) for at in range(len(text) + 1))
    if glob[0] == "*":
        return any(fits(glob[1:], text[at:]) for at in range(len(text) + 1) if "/" not in text[:at])
    return text[:1] == glob[0] and fits(glob[1:], text[1:])


def _reach(start: str, edges: dict[str, list[str]]) -> set[str]:
    seen: set[str] = set()
    todo = list(edges[start])
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo.extend(edges.get(one, ()))
    return seen


def _cycle_fault(id_: str, reach: dict[str, set[str]]) -> Fault | None:
    members = sorted(one for one in reach[id_] if one in reach and id_ in reach[one])
    if not members:
        return None
    if members == [id_]:
        return Fault("cycle", f"'{id_}' depends on itself", id_)
    shown = ", ".join(f"'{one}'" for one in members[:32])
    more = f" and {len(members) - 32} more" if len(members) > 32 else ""
    return Fault("cycle", f"these depend on each other: {shown}{more}", members[0])


def _call(update: Derive, args: dict[str, Json]) -> Value:
    function = registry().functions[update.function]
    spread: list[Json] = []
    for name, given in update.inputs.items():
        found = args[name]
        if isinstance(given, str):
            spread.append(found)
        else:
            assert isinstance(found, list)
            spread.extend(found)
    try:
        result = function.call(args if function.takes == "names" else spread, update.params)  # type: ignore[misc]
        check_json(result)
    except FunctionError as error:
        return Value(None, State.ERROR, Fault(error.code, str(error), update.id))
    except UnprocessableError as error:
        codes = {
            "the integer does not fit in 64 bits": ("overflow", "the result does not fit in 64 bits"),
            "the number must be finite": ("not_finite", "the result is not a finite number"),
        }
        fault = next(fault for begin, fault in codes.items() if error.message.startswith(begin))
        return Value(None, State.ERROR, Fault(*fault, update.id))
    return Value(result, State.OK)
