"""What became of an edit: how values stand, and what its formulas name that does not exist."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rebaser_core.updates import Derive, Update

if TYPE_CHECKING:
    from rebaser_core.state.change_set import ChangeSetState
    from rebaser_core.state.tally import Tally

SHOWN = 3  # reasons, warnings, names of one warning


def tally_text(found: "Tally") -> str:
    """`3 ok, 1 error`: what there is of every state."""
    told = ", ".join(f"{count:,} {state.value}" for state, count in found.counts.items() if count)
    return told or "no values"


def failure_lines(found: "Tally") -> list[str]:
    """A line for each of the first causes, and how many more there are."""
    lines = [f"error {id_}: {fault.code}: {fault.message}" for id_, fault in found.causes]
    more = found.failing - len(found.causes)
    if more:
        lines.append(f"and {more:,} more that fail by themselves")
    follow = found.errors - found.failing
    if follow:
        lines.append(f"{follow:,} fail because an input does")
    return lines


def tally_object(found: "Tally") -> dict[str, Any]:
    """The same for machines."""
    return {
        "values": {state.value: count for state, count in found.counts.items()},
        "errors": [{"id": id_, "code": fault.code, "message": fault.message} for id_, fault in found.causes],
    }


def unknown_input_warnings(updates: Sequence[Update], state: "ChangeSetState") -> list[str]:
    """A line for each formula among `updates` that names what `state` does not have."""
    lines = []
    for update in updates:
        if isinstance(update, Derive) and update.function == "cel":
            missing = [id_ for id_ in update.input_ids() if id_.isprintable() and id_ not in state.cells]
            if missing:
                lines.append(_unknown(update, missing, state.cells))
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {more:,} more formulas name values that do not exist"] if more > 0 else lines


def _unknown(update: Derive, missing: Sequence[str], ids: Iterable[str]) -> str:
    names = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
    line = f"{update.id} names what does not exist: {names}"
    expression = str(update.params.get("expr"))
    meant = [id_ for id_ in ids if id_ in expression and any(_is_part(name, id_) for name in missing)]
    if meant:
        return f"{line}; for the value {max(meant, key=len)} write `{max(meant, key=len)}`, in backticks"
    return line


def _is_part(name: str, id_: str) -> bool:
    return name != id_ and name in re.findall(r"\w+", id_)
