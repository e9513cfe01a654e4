"""`rebaser get`: the values of a change set."""

import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli import console
from rebaser.cli.failures import CommandFailed, usage
from rebaser.cli.options import DEFAULT_NATS, ChangeSet, Json, Nats, Prefix, Workspace, checked_key

if TYPE_CHECKING:
    from rebaser_core.state import ChangeSetState
    from rebaser_core.values import Value

# A table of more rows than this helps nobody, and takes rich minutes.
MAX_ROWS = 500


def get(
    workspace: Workspace,
    change_set: ChangeSet,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Only these; default: all.")] = None,
    *,
    json: Json = False,
    updates: Annotated[
        bool, typer.Option("--updates", help="JSON Lines of updates that rebuild it with `enqueue --file`.")
    ] = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show the values of a change set.

    On a terminal a table; through a pipe one value a line, tabs between id, state, value and error. With --json one
    object a line. An id that does not exist makes the exit code 1.
    """
    from rebaser.cli.running import run_async

    if json and updates:
        raise usage("--json and --updates are two formats; choose one")
    key = checked_key(workspace, change_set)
    found: list[ChangeSetState] = []
    code = run_async(partial(_load, nats, prefix, key.workspace, key.change_set, found))
    if code:
        return code
    state = found[0]
    wanted = list(dict.fromkeys(ids or ()))
    if updates:
        _show_updates(state, wanted)
    else:
        _show_values(state, wanted, json)
    missing = [id_ for id_ in wanted if id_ not in state.cells]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise CommandFailed(f"{key.workspace}/{key.change_set} has no value {', '.join(missing[:5])}{more}")
    if not state.cells:
        console.note(f"{key.workspace}/{key.change_set} has no values")
    return 0


async def _load(nats: str, prefix: str, workspace: str, change_set: str, found: list["ChangeSetState"]) -> None:
    from rebaser.cli.access import connected

    async with connected(nats, prefix) as client:
        found.append(await client.state(workspace, change_set))


def _show_updates(state: "ChangeSetState", wanted: list[str]) -> None:
    only = set(wanted)
    for update in state.updates():
        if not only or update.id in only:
            console.write_json(update.to_wire())


def _show_values(state: "ChangeSetState", wanted: list[str], as_json: bool) -> None:
    stale = state.stale()
    chosen = _chosen(state, wanted, stale)
    if as_json:
        for id_, value in chosen:
            console.write_json(_object(id_, value))
        return
    rows = (_row(id_, value) for id_, value in chosen)
    total = len(wanted or state.cells)
    if console.out().is_terminal and total > MAX_ROWS:
        rows = (row for row, _ in zip(rows, range(MAX_ROWS), strict=False))
    console.table(("id", "state", "value", "error"), rows)
    if console.out().is_terminal and total > MAX_ROWS:
        sys.stdout.flush()
        console.note(f"{MAX_ROWS} of {total:,} values; name ids, or see all with --json")


def _chosen(state: "ChangeSetState", wanted: list[str], stale: set[str]) -> Iterator[tuple[str, "Value"]]:
    for id_ in wanted or sorted(state.cells):
        value = state.value(id_, stale)
        if value is not None:
            yield id_, value


def _object(id_: str, value: "Value") -> dict[str, Any]:
    fault = value.error
    error = None if fault is None else {"code": fault.code, "message": fault.message, "origin": fault.origin}
    return {"id": id_, "value": value.value, "state": value.state.value, "error": error}


def _row(id_: str, value: "Value") -> tuple[str, str, str, str]:
    from rebaser_core.values import State

    shown = "" if value.state in (State.ERROR, State.UNSET) else console.json_text(value.value)
    fault = "" if value.error is None else f"{value.error.code}: {value.error.message}"
    return id_, value.state.value, shown, fault
