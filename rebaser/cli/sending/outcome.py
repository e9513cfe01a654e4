"""Describes the result of an edit: its values and errors, and formulas that use ids that do not exist."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rebaser_core.updates import Derive, Update

if TYPE_CHECKING:
    from rebaser_core.state.change_set import ChangeSetState
    from rebaser_core.state.tally import Tally

SHOWN = 3  # maximum number of warnings, and of names in a warning


def failure_lines(tally: "Tally") -> list[str]:
    """Return a line for each of the first values whose error does not come from an input, and lines that count the
    remaining errors."""
    lines = [f"error {id_}: {fault.code}: {fault.message}" for id_, fault in tally.causes]
    more = tally.failing - len(tally.causes)
    if more:
        lines.append(f"and {more:,} more values with errors of their own")
    dependents = tally.errors - tally.failing
    if dependents:
        lines.append(f"{dependents:,} more failed because an input failed")
    return lines


def tally_object(tally: "Tally") -> dict[str, Any]:
    """Return the number of values in each state, and the first errors, as an object for `--json`."""
    return {
        "values": {state.value: count for state, count in tally.counts.items()},
        "errors": [{"id": id_, "code": fault.code, "message": fault.message} for id_, fault in tally.causes],
    }


def unknown_input_warnings(updates: Sequence[Update], state: "ChangeSetState") -> list[str]:
    """Return a warning for each formula among `updates` that uses ids that do not exist in `state`, up to a maximum
    number."""
    lines = []
    for update in updates:
        if isinstance(update, Derive) and update.function == "cel":
            missing = [id_ for id_ in update.input_ids() if id_.isprintable() and id_ not in state.cells]
            if missing:
                lines.append(_unknown(update, missing, state.cells))
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {more:,} more formulas use ids that do not exist"] if more > 0 else lines


def _unknown(update: Derive, missing: Sequence[str], ids: Iterable[str]) -> str:
    names = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
    line = f"the formula of {update.id} uses ids that do not exist: {names}"
    expression = str(update.params.get("expr"))
    intended = [id_ for id_ in ids if id_ in expression and any(_is_part(name, id_) for name in missing)]
    if intended:
        return (
            f"{line}; to name the value {max(intended, key=len)}, put backticks around it: `{max(intended, key=len)}`"
        )
    return line


def _is_part(name: str, id_: str) -> bool:
    return name != id_ and name in re.findall(r"\w+", id_)
