"""The expected values of a change set, computed by simple code of the simulation.

It shares nothing with the product's folding, planning and evaluation: definitions are in a dictionary, and values are
computed by recursion.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

from rebaser_core.commit import Computed
from rebaser_core.state.overlay import Cell
from rebaser_core.updates import Derive, Remove, Set, Unset, Update

FAULT = "<fault>"  # stands for a value that cannot be computed, for any reason
Definition: TypeAlias = Set | Derive


def recompute(definitions: dict[str, Definition]) -> dict[str, Any]:
    """Compute every value from its definition.

    Supports sums, products and counts of integers, concatenated texts, and patterns.
    """
    found: dict[str, Any] = {}

    def value(id_: str) -> Any:
        if id_ not in found:
            found[id_] = FAULT  # If the recursion needs this value before it is known, the value is in a cycle.
            found[id_] = compute(definitions.get(id_))
        return found[id_]

    def members(definition: Derive) -> list[str]:
        ids = []
        for given in definition.inputs.values():
            for one in given if isinstance(given, tuple) else (given,):
                ids += [one] if isinstance(one, str) else sorted(id_ for id_ in definitions if fits(one.glob, id_))
        return ids

    def compute(definition: Definition | None) -> Any:
        if definition is None:
            return FAULT
        if isinstance(definition, Set):
            return definition.value
        values = [value(id_) for id_ in members(definition)]
        if FAULT in values:
            return FAULT
        values = [one for one in values if one is not None]
        if definition.function == "count":
            return len(values)
        if definition.function == "concat":
            return "".join(map(str, values))
        if any(isinstance(one, str) for one in values):
            return FAULT
        result = sum(values) if definition.function == "sum" else math.prod(values)
        return result if -(2**63) <= result < 2**63 else FAULT

    return {id_: value(id_) for id_ in definitions}


@cache
def fits(glob: str, text: str) -> bool:
    """Return whether `glob` matches `text`, by trying all possibilities."""
    if not glob:
        return not text
    if glob.startswith("**"):
        return any(fits(glob[2:], text[at:]) for at in range(len(text) + 1))
    if glob[0] == "*":
        return any(fits(glob[1:], text[at:]) for at in range(len(text) + 1) if "/" not in text[:at])
    return text[:1] == glob[0] and fits(glob[1:], text[1:])


def as_null(update: Update) -> Update:
    """Return `update` in the form that a book has, in which an unset value is a value that is set to null."""
    return Set(update.id, None) if isinstance(update, Unset) else update


@dataclass
class Book:
    """The expected definitions and values of one change set.

    `touched` has the log sequence that last edited each id, and `computed` the results that commits of updates had.
    `as_of`, `found` and `edits` have the definitions, the `computed` and the `touched` as of each log sequence.
    """

    definitions: dict[str, Definition] = field(default_factory=dict)
    touched: dict[str, int] = field(default_factory=dict)
    computed: dict[str, Any] = field(default_factory=dict)
    as_of: dict[int, dict[str, Definition]] = field(default_factory=lambda: {0: {}})
    found: dict[int, dict[str, Any]] = field(default_factory=lambda: {0: {}})
    edits: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})

    def edit(self, update: Update, sequence: int) -> None:
        if isinstance(update, Remove):
            self.definitions.pop(update.id, None)
        elif isinstance(update, Unset):
            self.definitions[update.id] = Set(update.id, None)
        else:
            assert isinstance(update, (Set, Derive))
            self.definitions[update.id] = update
        self.touched[update.id] = sequence
        if not isinstance(update, Derive):
            self.computed.pop(update.id, None)

    def note(self, item: Computed) -> None:
        self.computed[item.id] = FAULT if item.fault is not None else item.value

    def close(self, sequence: int) -> None:
        self.as_of[sequence], self.found[sequence] = dict(self.definitions), dict(self.computed)
        self.edits[sequence] = dict(self.touched)

    def stood_otherwise(self, ids: set[str], told: tuple[Update, ...] | None) -> str:
        """Compare the definitions of `ids` with those in `told`. Return the difference, empty if there is none. A value
        that is unset counts as null."""
        stands = {id_: repr(self.definitions[id_]) for id_ in ids if id_ in self.definitions}
        if told is None:
            return "nothing is told"
        found = {one.id: repr(as_null(one)) for one in told}
        wrong = [id_ for id_ in sorted({*stands, *found}) if stands.get(id_) != found.get(id_)]
        return ", ".join(f"{id_} was {stands.get(id_)}, not {found.get(id_)}" for id_ in wrong)

    def wrong(self, covers: int) -> str:
        """Compare the computed values with a full recompute as of log sequence `covers`. Return the difference, empty
        if there is none."""
        wanted = recompute(self.as_of[covers])
        for id_, definition in self.definitions.items():
            if isinstance(definition, Derive) and self.touched[id_] <= covers:
                have = self.computed.get(id_, "nothing")
                if have != wanted[id_]:
                    return f"{id_} is {have}, a recompute as of {covers} gives {wanted[id_]}"
        return ""

    def differs(self, sequence: int, cells: Mapping[str, Cell], *, tracked: bool | None) -> str:
        """Compare `cells` with the book as of log sequence `sequence`. Return the difference, empty if there is none.

        `tracked` says whether `cells` record which commits defined them; None: unknown.
        """
        definitions, found = self.as_of[sequence], self.found[sequence]
        if cells.keys() != definitions.keys():
            return f"ids {sorted(cells.keys() ^ definitions.keys())}"
        for id_, definition in definitions.items():
            cell = cells[id_]
            if tracked is not None and cell.edited != (self.edits[sequence][id_] if tracked else 0):
                return f"{id_}, which commit {self.edits[sequence][id_]} defined, not {cell.edited}"
            if isinstance(definition, Set):
                if (cell.value, cell.definition) != (definition.value, None):
                    return f"{id_}, which is {cell} for {definition.value}"
                continue
            told = found.get(id_, cell.value)  # Before its first update, a value shows what was there before.
            if (cell.value, cell.definition) != (None if told == FAULT else told, definition):
                return f"{id_}, which is {cell} for {definition} = {told}"
        return ""

    def values(self, sequence: int) -> dict[str, Any]:
        return recompute(self.as_of[sequence])
