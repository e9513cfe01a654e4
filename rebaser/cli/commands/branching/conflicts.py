"""`rebaser conflicts`: shows the conflicts of a branch with its target, and how to settle them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Branch, Json, Nats, NoPager, Prefix, Workspace, checked_key
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import BranchConflict, BranchConflicts, BranchInfo
    from rebaser_client.log.changes import Definition

STYLES = {1: "dim", 2: "red", 3: "green"}
COMMANDS = 3  # maximum number of conflicts for which commands that settle them are shown


def conflicts(
    workspace: Workspace,
    branch: Branch,
    *,
    at: Annotated[
        str | None,
        typer.Option(metavar="P", help="Show the conflicts as of this position: a log sequence, an age or a time."),
    ] = None,
    no_pager: NoPager = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show the values that a branch and its target defined differently, and the commands that settle these conflicts.

    Each line has an id, the definition that both sides replaced, the definition in the target, and the definition in
    the branch; - means that the value does not exist there. The command shows the conflicts that rebases have recorded,
    and ignores edits of the target after the last rebase. With --json, it prints one object per line.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.options import checked_position
    from rebaser.cli.output.pager import paged
    from rebaser.cli.runner import run_async

    key = checked_key(workspace, branch)
    position = None if at is None else checked_position(workspace, f"{branch}@{at}")[1]
    loaded: list[BranchConflicts] = []

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            try:
                loaded.append(await client.conflicts(key.workspace, key.change_set, at=position))
            except UnprocessableError as error:
                raise CommandFailed(error.message) from None

    code = run_async(load)
    if code:
        return code
    info, found = loaded[0].info, loaded[0].conflicts
    if found:
        show_found(info, found, json, paged(not no_pager and not json))
    elif json:
        return 0
    elif info.behind:
        console.note(
            f"no conflicts as of {info.target}@{info.base}; {info.target} was edited since: "
            f"`{command('rebase', workspace, branch)}` shows whether these edits cause any"
        )
    else:
        console.note(f"no conflicts: {info.change_set} has all edits up to {info.target}@{info.base}")
    return 0


def show_found(
    info: "BranchInfo",
    found: "Sequence[BranchConflict]",
    json: bool,
    pager: AbstractContextManager[None] = nullcontext(),  # noqa: B008 - `nullcontext` has no state
) -> None:
    """Show the conflicts of a branch within `pager`, followed by commands that settle some of them."""
    if json:
        for one in found:
            named = {str(info.target): one.theirs, info.change_set: one.ours}
            console.write_json(conflict_json(one.id, one.base, named) | {"resolve": resolve_commands(info, one.id)})
        return
    with pager:
        show_rows(info, [(one.id, one.base, one.theirs, one.ours) for one in found])
    for one in found[:COMMANDS]:
        theirs, _ = resolve_commands(info, one.id)
        console.note(f"to settle: {theirs}  (or --take {info.change_set}, or --set VALUE)")
    if len(found) > 1:
        settle = command("resolve", info.workspace, info.change_set, options=("--all", "--take", str(info.target)))
        console.note(f"to settle all: {settle}  (or --take {info.change_set})")


def show_rows(info: "BranchInfo", rows: "Sequence[tuple[str, *tuple[Definition | None, ...]]]") -> None:
    """Show conflicts as a table: id, and the definitions at the base, in the target, and in the branch."""
    from rebaser.cli.output.change_format import definition_text

    titles = ("id", "base", f"{info.target}", info.change_set)
    console.table(titles, [(id_, *map(definition_text, sides)) for id_, *sides in rows], styles=STYLES)


def conflict_json(id_: str, base: "Definition | None", sides: "Mapping[str, Definition | None]") -> dict[str, Any]:
    """Return a conflict as a JSON object. `sides` maps the name of each change set to its definition."""
    from rebaser.cli.output.change_format import definition_json

    named = {name: definition_json(definition) for name, definition in sides.items()}
    return {"id": id_, "base": definition_json(base), "sides": named}


def resolve_commands(info: "BranchInfo", id_: str) -> list[str]:
    """Return two commands that settle a conflict: one takes the target's definition, and the other takes the
    branch's."""
    return [
        command("resolve", info.workspace, info.change_set, id_, options=("--take", str(side)))
        for side in (info.target, info.change_set)
    ]
