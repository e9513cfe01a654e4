"""`rebaser diff`: compares two positions, or two change sets."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli import console
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, NoPager, Position, Prefix, Workspace, checked_position

if TYPE_CHECKING:
    from rebaser_client.log.changes import Diff
    from rebaser_core.values import Value

STYLES = {1: "red", 2: "green"}


def diff(
    workspace: Workspace,
    change_set: Position,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="CS[@POSITION]", help="What to compare it with. Default: the same change set as it is now."
        ),
    ] = None,
    *,
    derived: Annotated[
        bool, typer.Option("--derived", help="Also show derived values that differ. This loads both states.")
    ] = False,
    no_pager: NoPager = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show how two positions of a change set, or two change sets, differ.

    Each line has an id, and its value or formula on the first side and on the second; - means that the value does not
    exist there. Derived values are compared by their formulas; with --derived, also by their results. With --json, it
    prints one object per line.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async

    one, at = checked_position(workspace, change_set)
    two, other_at = (one, None) if other is None else checked_position(workspace, other)
    loaded: list[Diff] = []

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            compare = partial(client.diff, one.workspace, one.change_set, two.change_set)
            loaded.append(await compare(at=at, other_at=other_at, derived=derived))

    code = run_async(load)
    if code:
        return code
    found = loaded[0]
    if json:
        _write_objects(found)
        return 0
    from rebaser.cli.change_format import change_row
    from rebaser.cli.pager import paged

    names = f"{one.change_set}@{found.first}", f"{two.change_set}@{found.last}"
    rows = [change_row(change) for change in found.changes]
    rows += [(id_, _value_text(before), _value_text(after)) for id_, before, after in found.derived]
    with paged(not no_pager and bool(rows)):
        console.table(("id", *names), rows, styles=STYLES)
    if not rows:
        console.note(f"{names[0]} and {names[1]} are the same")
    return 0


def _write_objects(found: "Diff") -> None:
    from rebaser.cli.change_format import change_json

    for change in found.changes:
        console.write_json(change_json(change))
    for id_, before, after in found.derived:
        console.write_json({"id": id_, "valueBefore": _value_json(before), "valueAfter": _value_json(after)})


def _value_json(value: "Value") -> dict[str, object]:
    error = None if value.error is None else {"code": value.error.code, "message": value.error.message}
    return {"value": value.value, "state": value.state.value, "error": error}


def _value_text(value: "Value") -> str:
    if value.error is not None:
        return f"{value.error.code}: {value.error.message}"
    return console.json_text(value.value) + (" (stale)" if value.state == "stale" else "")
