"""`rebaser get`: shows the values of a change set."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.completion import complete_id
from rebaser.cli.errors import CommandFailed, check_exists, usage_error
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Position, Prefix, Workspace, checked_position
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client.log.positions import At
    from rebaser_core.ids import ChangeSetKey
    from rebaser_core.state.change_set import ChangeSetState
    from rebaser_core.state.rows import Row
    from rebaser_core.values import Fault, State
    from rebaser_core.values import Json as JsonValue

MAX_ROWS = 500  # maximum number of rows in a table on a terminal, because rich takes minutes for very long tables


def get(
    workspace: Workspace,
    change_set: Position,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Ids of values to show, or patterns ('cart/*/price'). Default: all values.",
            autocompletion=complete_id,
        ),
    ] = None,
    *,
    json: Json = False,
    updates: Annotated[
        bool,
        typer.Option("--updates", help="Print the definitions as updates in JSON Lines, for `rebaser enqueue --file`."),
    ] = False,
    with_definitions: Annotated[
        bool,
        typer.Option("--with-definitions", help="Also show the function, inputs and parameters of derived values."),
    ] = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show the values of a change set, now or at a position in its history.

    On a terminal, it prints a table of at most 500 values. Otherwise, it prints one value per line: id, state, value,
    error and, with --with-definitions, the definition, separated by tabs. With --json, it prints one object per line;
    if a position is given, each object also has the log sequence of the commit whose state is shown.

    At a position, derived values have the results that were stored at that time; values that were not up to date are
    stale.

    In a pattern, * matches any characters except /, and ** matches any characters. The exit code is 1 if the change set
    or an id does not exist, or if a pattern matches nothing.
    """
    from rebaser.cli.runner import collector_paused, run_async

    if json and updates:
        raise usage_error("choose one of --json and --updates")
    key, at = checked_position(workspace, change_set)
    loaded: list[ChangeSetState] = []
    requested = list(dict.fromkeys(ids or ()))
    only = requested if requested and not any("*" in text for text in requested) else None
    code = run_async(partial(_load, (nats, prefix), key, at, only, loaded))
    if code:
        return code
    state = loaded[0]
    selected, missing = _select(state, requested)
    with collector_paused():
        if updates:
            _show_updates(state, selected)
        else:
            more = {} if at is None else {"position": state.last}
            _show_values(state, selected, json, with_definitions, more)
    name = f"{key.workspace}/{key.change_set}" if at is None else f"{key.workspace}/{key.change_set}@{state.last}"
    if missing:
        others = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        every = f"`{command('get', key.workspace, change_set)}` shows all values"
        raise CommandFailed(f"{name} has no value {', '.join(missing[:5])}{others}; {every}")
    if state.status == "deleted":
        console.note(f"{name} is deleted; `{command('reopen', key.workspace, key.change_set)}` brings it back")
    elif not state.last and at is None:
        why = f"`{command('explain', key.workspace, key.change_set)}` says why its requests wait"
        console.note(f"{name} has no values yet; {why}")
    elif not state.cells:
        console.note(f"{name} has no values")
    return 0


async def _load(
    server: tuple[str, str],
    key: "ChangeSetKey",
    at: "At | None",
    only: list[str] | None,
    loaded: list["ChangeSetState"],
) -> None:
    from rebaser.cli.connect import connect_client, load_state

    state = await load_state(*server, key, at=at, ids=only)
    if not state.last:
        async with connect_client(*server) as client:
            await check_exists(client, key)
    loaded.append(state)


def _select(state: "ChangeSetState", requested: list[str]) -> tuple[list[str] | None, list[str]]:
    """Return the ids that `requested` selects, or None for all ids. Also return the items of `requested` that select
    nothing.

    An item is an id or a pattern. An item that is the id of an existing value is not treated as a pattern.
    """
    from rebaser_core.state.selection import select_ids

    if not requested:
        return None, []
    selected: dict[str, None] = {}
    missing: list[str] = []
    for text in requested:
        ids = [text] if text in state.cells else select_ids(state, text) if "*" in text else []
        selected |= dict.fromkeys(ids)
        if not ids:
            missing.append(text)
    return list(selected), missing


def _show_updates(state: "ChangeSetState", selected: list[str] | None) -> None:
    for id_ in state.cells if selected is None else selected:
        if (update := state.cells.edit_of(id_)) is not None:
            console.write_json(update.to_wire())


def _show_values(
    state: "ChangeSetState",
    selected: list[str] | None,
    as_json: bool,
    with_definitions: bool,
    more: dict[str, Any] | None = None,
) -> None:
    """Show the values of the ids `selected` (None: all). With `as_json`, each object ends with the fields `more`."""
    from rebaser_core.state.rows import all_rows

    chosen = all_rows(state) if selected is None else _selected_rows(state, selected)
    if as_json:
        sys.stdout.writelines(
            _object_line(*row, (_definition(state, row[0]) if with_definitions else {}) | (more or {}))
            for row in chosen
        )
        return
    count = len(state.cells) if selected is None else len(selected)
    rows: Iterator[tuple[str, ...]] = (_text_row(*row) for row in chosen)
    titles: tuple[str, ...] = ("id", "state", "value", "error")
    if with_definitions:
        titles += ("definition",)
        rows = ((*row, _formula(state, row[0])) for row in rows)
    if console.is_terminal() and count > MAX_ROWS:
        rows = (row for row, _ in zip(rows, range(MAX_ROWS), strict=False))
    console.table(titles, rows)
    if console.is_terminal() and count > MAX_ROWS:
        sys.stdout.flush()
        console.note(f"{MAX_ROWS} of {count:,} values are shown; give ids, or use --json for all")


def _selected_rows(state: "ChangeSetState", ids: list[str]) -> "Iterator[Row]":
    """Yield the rows of those `ids` that exist, in the order of `ids`. Rows have the same form as those from
    `all_rows`."""
    stale = state.stale()
    for id_ in ids:
        if (value := state.value(id_, stale)) is not None:
            yield id_, value.value, value.state, value.error


def _object_line(id_: str, value: "JsonValue", state: "State", fault: "Fault | None", fields: dict[str, Any]) -> str:
    """Return a value as a line of JSON, with `fields` at its end.

    The line is assembled from parts, because encoding the whole object takes several times as long.
    """
    text = console.json_text
    error = "null"
    if fault is not None:
        error = text({"code": fault.code, "message": fault.message, "origin": fault.origin})
    more = "".join([f',"{name}":{text(part)}' for name, part in fields.items()]) if fields else ""
    return f'{{"id":{text(id_)},"value":{text(value)},"state":"{state}","error":{error}{more}}}\n'


def _definition(state: "ChangeSetState", id_: str) -> dict[str, Any]:
    """Return the function, inputs and parameters of a derived value, under the keys that an update uses. Return an
    empty object for any other value."""
    definition = state.cells[id_].definition
    if definition is None:
        return {}
    wire = definition.to_wire()
    return {name: wire[name] for name in ("function", "inputs", "params")}


def _formula(state: "ChangeSetState", id_: str) -> str:
    definition = _definition(state, id_)
    if not definition:
        return ""
    arguments = [definition["inputs"], definition["params"]] if definition["params"] else [definition["inputs"]]
    return " ".join([definition["function"], *map(console.json_text, arguments)])


def _text_row(id_: str, value: "JsonValue", state: "State", fault: "Fault | None") -> tuple[str, str, str, str]:
    from rebaser_core.values import State

    shown = "" if state in (State.ERROR, State.UNSET) else console.json_text(value)
    return id_, state.value, shown, "" if fault is None else f"{fault.code}: {fault.message}"
