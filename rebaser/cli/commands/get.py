"""`rebaser get`: the values of a change set."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed, usage_error
from rebaser.cli.options import DEFAULT_NATS, ChangeSet, Json, Nats, Prefix, Workspace, checked_key

if TYPE_CHECKING:
    from rebaser_core.state.change_set import ChangeSetState
    from rebaser_core.values import Value

# A table of more rows than this helps nobody, and takes rich minutes.
MAX_ROWS = 500


def get(
    workspace: Workspace,
    change_set: ChangeSet,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Only these, or those of a pattern ('cart/*/price').")
    ] = None,
    *,
    json: Json = False,
    updates: Annotated[
        bool, typer.Option("--updates", help="JSON Lines of updates that rebuild it with `enqueue --file`.")
    ] = False,
    with_definitions: Annotated[
        bool, typer.Option("--with-definitions", help="How derived values are computed, too.")
    ] = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show the values of a change set.

    On a terminal a table; through a pipe one value a line, tabs between id, state, value and error (and definition).
    With --json one object a line. In a pattern, * is any run of characters but /, and ** any run at all. An id that
    does not exist, or a pattern that matches nothing, makes the exit code 1.
    """
    from rebaser.cli.runner import run_async

    if json and updates:
        raise usage_error("--json and --updates are two formats; choose one")
    key = checked_key(workspace, change_set)
    found: list[ChangeSetState] = []
    code = run_async(partial(_load, nats, prefix, key.workspace, key.change_set, found))
    if code:
        return code
    state = found[0]
    wanted, missing = _found(state, list(dict.fromkeys(ids or ())))
    if updates:
        _show_updates(state, wanted)
    else:
        _show_values(state, wanted, json, with_definitions)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise CommandFailed(f"{key.workspace}/{key.change_set} has no value {', '.join(missing[:5])}{more}")
    if not state.cells:
        console.note(f"{key.workspace}/{key.change_set} has no values")
    return 0


async def _load(nats: str, prefix: str, workspace: str, change_set: str, found: list["ChangeSetState"]) -> None:
    from rebaser.cli.connect import connect_client

    async with connect_client(nats, prefix) as client:
        found.append(await client.state(workspace, change_set))


def _found(state: "ChangeSetState", asked: list[str]) -> tuple[list[str] | None, list[str]]:
    """The ids that are asked for, None for all, and what of it is not there. What is an id is no pattern."""
    from rebaser_core.state.selection import select_ids

    if not asked:
        return None, []
    wanted: dict[str, None] = {}
    missing: list[str] = []
    for one in asked:
        ids = [one] if one in state.cells else select_ids(state, one) if "*" in one else []
        wanted |= dict.fromkeys(ids)
        if not ids:
            missing.append(one)
    return list(wanted), missing


def _show_updates(state: "ChangeSetState", wanted: list[str] | None) -> None:
    only = None if wanted is None else set(wanted)
    for update in state.updates():
        if only is None or update.id in only:
            console.write_json(update.to_wire())


def _show_values(state: "ChangeSetState", wanted: list[str] | None, as_json: bool, with_definitions: bool) -> None:
    stale = state.stale()
    ids = sorted(state.cells) if wanted is None else wanted
    chosen = ((id_, value) for id_ in ids if (value := state.value(id_, stale)) is not None)
    if as_json:
        for id_, value in chosen:
            console.write_json(_object(id_, value) | (_definition(state, id_) if with_definitions else {}))
        return
    rows: Iterator[tuple[str, ...]] = (_row(id_, value) for id_, value in chosen)
    titles: tuple[str, ...] = ("id", "state", "value", "error")
    if with_definitions:
        titles += ("definition",)
        rows = ((*row, _formula(state, row[0])) for row in rows)
    if console.out().is_terminal and len(ids) > MAX_ROWS:
        rows = (row for row, _ in zip(rows, range(MAX_ROWS), strict=False))
    console.table(titles, rows)
    if console.out().is_terminal and len(ids) > MAX_ROWS:
        sys.stdout.flush()
        console.note(f"{MAX_ROWS} of {len(ids):,} values; name ids, or see all with --json")


def _object(id_: str, value: "Value") -> dict[str, Any]:
    fault = value.error
    error = None if fault is None else {"code": fault.code, "message": fault.message, "origin": fault.origin}
    return {"id": id_, "value": value.value, "state": value.state.value, "error": error}


def _definition(state: "ChangeSetState", id_: str) -> dict[str, Any]:
    """The function, inputs and parameters of a derived value, in the words of an update; nothing for another."""
    definition = state.cells[id_].definition
    if definition is None:
        return {}
    wire = definition.to_wire()
    return {name: wire[name] for name in ("function", "inputs", "params")}


def _formula(state: "ChangeSetState", id_: str) -> str:
    definition = _definition(state, id_)
    if not definition:
        return ""
    given = [definition["inputs"], definition["params"]] if definition["params"] else [definition["inputs"]]
    return " ".join([definition["function"], *map(console.json_text, given)])


def _row(id_: str, value: "Value") -> tuple[str, str, str, str]:
    from rebaser_core.values import State

    shown = "" if value.state in (State.ERROR, State.UNSET) else console.json_text(value.value)
    fault = "" if value.error is None else f"{value.error.code}: {value.error.message}"
    return id_, value.state.value, shown, fault
