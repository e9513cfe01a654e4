"""`rebaser diff`: compares two positions, or two change sets."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.completion import complete_change_set
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, NoPager, Position, Prefix, Workspace, checked_position
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import BranchDiff
    from rebaser_client.log.changes import Diff, MovedValue
    from rebaser_core.ids import ChangeSetKey
    from rebaser_core.values import Value

STYLES = {1: "red", 2: "green"}


def diff(
    workspace: Workspace,
    change_set: Position,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="CS[@POSITION]",
            help="Compare with this. Default: the same change set as it is now; for a branch, its base.",
            autocompletion=complete_change_set,
        ),
    ] = None,
    *,
    derived: Annotated[
        bool, typer.Option("--derived", help="Also show derived values whose results differ. This loads both states.")
    ] = False,
    no_pager: NoPager = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show what a branch changed, or how two positions of a change set, or two change sets, differ.

    With one change set and no position, it shows what this branch changed since its base. If the target also edited one
    of these values, its current definition in the target is shown; "landed" means that this equals the definition in
    the branch. The titles of the columns are the positions that `rebaser apply --at --expect` takes; with --json, they
    are the fields "position" (of the branch) and "target". With --derived, it also shows the derived values that the
    edits of the branch changed, at the base and in the branch.

    Each line has an id, and its value or formula on the first side and on the second; - means that the value does not
    exist there. Derived values are compared by their formulas and, with --derived, also by their results. With --json,
    it prints one object per line.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async

    one, at = checked_position(workspace, change_set)
    if at is None and other is None:
        return _diff_branch(one, nats, prefix, derived=derived, json=json, page=not no_pager)
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
    from rebaser.cli.output.change_format import change_row
    from rebaser.cli.output.pager import paged

    names = f"{one.change_set}@{found.first}", f"{two.change_set}@{found.last}"
    rows = [change_row(change) for change in found.changes]
    rows += [(id_, _value_text(before), _value_text(after)) for id_, before, after in found.derived]
    with paged(not no_pager and bool(rows)):
        console.table(("id", *names), rows, styles=STYLES)
    if not rows:
        console.note(f"{names[0]} and {names[1]} are the same")
    return 0


def _diff_branch(key: "ChangeSetKey", nats: str, prefix: str, *, derived: bool, json: bool, page: bool) -> int:
    """Show the changes of the branch `key` since its base."""
    from rebaser.cli.connect import connect_client
    from rebaser.cli.output.change_format import branch_change_json, branch_change_row
    from rebaser.cli.output.pager import paged
    from rebaser.cli.runner import run_async

    loaded: list[BranchDiff] = []

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            try:
                loaded.append(await client.changes(key.workspace, key.change_set, derived=derived))
            except UnprocessableError as error:
                raise CommandFailed(_advice(key, error)) from None

    code = run_async(load)
    if code:
        return code
    found = loaded[0]
    if json:
        target = {"changeSetId": found.info.target, "position": found.target_sequence}
        seen: dict[str, object] = {"position": found.info.sequence, "target": target}
        for change in found.changes:
            console.write_json(branch_change_json(change) | seen)
        _write_derived(found.derived, seen)
        return 0
    info = found.info
    moved = any(change.moved for change in found.changes)
    titles = ["id", f"{info.target}@{info.base}", f"{info.change_set}@{info.sequence}"]
    titles += [f"{info.target}@{found.target_sequence}"] * moved
    rows: list[tuple[str, ...]] = [branch_change_row(change)[: len(titles)] for change in found.changes]
    rows += [(id_, _value_text(before), _value_text(after)) + ("",) * moved for id_, before, after in found.derived]
    with paged(page and bool(rows)):
        console.table(titles, rows, styles=STYLES)
    if not rows:
        console.note(f"{info.change_set} has changed nothing since {info.target}@{info.base}")
    return 0


def _advice(key: "ChangeSetKey", error: UnprocessableError) -> str:
    name = key.change_set
    if error.code == "purged":
        now = command("diff", key.workspace, "TARGET", name, options=("--derived",))
        return f"{error.message}; to compare with the target as it is now: `{now}`"
    if error.code != "not_a_branch":
        return error.message
    return (
        f"{error.message}; to compare it with something else: `{command('diff', key.workspace, f'{name}@2h')}` or "
        f"`{command('diff', key.workspace, name, 'OTHER')}`"
    )


def _write_objects(found: "Diff") -> None:
    from rebaser.cli.output.change_format import change_json

    for change in found.changes:
        console.write_json(change_json(change))
    _write_derived(found.derived, {})


def _write_derived(derived: "Iterable[MovedValue]", more: "dict[str, object]") -> None:
    for id_, before, after in derived:
        console.write_json({"id": id_, "valueBefore": _value_json(before), "valueAfter": _value_json(after)} | more)


def _value_json(value: "Value") -> dict[str, object]:
    error = None if value.error is None else {"code": value.error.code, "message": value.error.message}
    return {"value": value.value, "state": value.state.value, "error": error}


def _value_text(value: "Value") -> str:
    if value.error is not None:
        return f"{value.error.code}: {value.error.message}"
    return console.json_text(value.value) + (" (stale)" if value.state == "stale" else "")
