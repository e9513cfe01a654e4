"""What the values of a change set must be: the simulation's own, deliberately plain idea of it.

It shares nothing with the product's fold, plan and evaluation: definitions in a dict, values by recursion.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rebaser_core.cells import Cell
from rebaser_core.commit import Computed
from rebaser_core.updates import Derive, Remove, Set, Update

FAULT = "<fault>"  # a value that cannot be computed, whatever the reason
Definition: TypeAlias = Set | Derive


def recompute(definitions: dict[str, Definition]) -> dict[str, Any]:
    """Every value from scratch. Knows sums and products of integers, without cycles."""
    found: dict[str, Any] = {}

    def value(id_: str) -> Any:
        if id_ not in found:
            found[id_] = compute(definitions.get(id_))
        return found[id_]

    def compute(definition: Definition | None) -> Any:
        if definition is None:
            return FAULT
        if isinstance(definition, Set):
            return definition.value
        values = [value(id_) for id_ in definition.input_ids()]
        if FAULT in values:
            return FAULT
        if definition.function == "sum":
            return sum(values)
        result = 1
        for one in values:
            result *= one
        return result

    return {id_: value(id_) for id_ in definitions}


@dataclass
class Book:
    """`touched`: the log sequence that last edited an id. `computed`: what updates of derived values have said. `as_of`
    and `found`: definitions, and what was computed, by log sequence.
    """

    definitions: dict[str, Definition] = field(default_factory=dict)
    touched: dict[str, int] = field(default_factory=dict)
    computed: dict[str, Any] = field(default_factory=dict)
    as_of: dict[int, dict[str, Definition]] = field(default_factory=lambda: {0: {}})
    found: dict[int, dict[str, Any]] = field(default_factory=lambda: {0: {}})

    def edit(self, update: Update, sequence: int) -> None:
        if isinstance(update, Remove):
            self.definitions.pop(update.id, None)
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

    def wrong(self, covers: int) -> str:
        """What is not as a full recompute at log sequence `covers` would have it; empty if all is."""
        wanted = recompute(self.as_of[covers])
        for id_, definition in self.definitions.items():
            if isinstance(definition, Derive) and self.touched[id_] <= covers:
                have = self.computed.get(id_, "nothing")
                if have != wanted[id_]:
                    return f"{id_} is {have}, a recompute as of {covers} gives {wanted[id_]}"
        return ""

    def differs(self, sequence: int, cells: Mapping[str, Cell]) -> str:
        """What `cells` have otherwise than it was at log sequence `sequence`; empty if nothing."""
        definitions, found = self.as_of[sequence], self.found[sequence]
        if cells.keys() != definitions.keys():
            return f"ids {sorted(cells.keys() ^ definitions.keys())}"
        for id_, definition in definitions.items():
            cell = cells[id_]
            if isinstance(definition, Set):
                if (cell.value, cell.definition) != (definition.value, None):
                    return f"{id_}, which is {cell} for {definition.value}"
                continue
            told = found.get(id_, cell.value)  # before the first update it shows what stood there
            if (cell.value, cell.definition) != (None if told == FAULT else told, definition):
                return f"{id_}, which is {cell} for {definition} = {told}"
        return ""

    def values(self, sequence: int) -> dict[str, Any]:
        return recompute(self.as_of[sequence])
