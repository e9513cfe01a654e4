"""`rebaser blame`: shows who last defined values."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.completion import complete_id
from rebaser.cli.errors import CommandFailed, check_exists
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, NoPager, Position, Prefix, Workspace, checked_position
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client.log.blame import Blame


def blame(
    workspace: Workspace,
    change_set: Position,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of values.", autocompletion=complete_id)],
    *,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="For each value, show the newest edit of it or of a value on which it depends. Loads all values.",
        ),
    ] = False,
    no_pager: NoPager = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show who last defined values: the commit, its time (UTC), the author and the request.

    For a derived value, this is the commit that defined its formula, not the commit with its newest result. With
    --deep, it is the newest edit of the value or of any value on which it depends, and the column "edited" names the
    value that was edited.

    If an apply or a rebase copied the definition from another change set, the edit there is shown, and the last column
    lists the commits that copied it. If the history of the other change set cannot be read any more, the commit that
    copied the definition is shown.

    The commit's position is shown even if the log no longer contains the commit; (unknown) means that servers kept no
    history when the value was defined. The exit code is 1 if an id does not exist.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async

    key, at = checked_position(workspace, change_set)
    found: dict[str, Blame] = {}

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            found.update(await client.blame(key.workspace, key.change_set, *ids, at=at, deep=deep))
            if not found:
                await check_exists(client, key)

    code = run_async(load)
    if code:
        return code
    if json:
        for id_, one in found.items():
            console.write_json(_object(id_, one, deep=deep))
    else:
        from rebaser.cli.output.pager import paged

        with paged(not no_pager):
            _show(found, deep=deep)
    missing = [id_ for id_ in ids if id_ not in found]
    if missing:
        every = f"`{command('get', key.workspace, change_set)}` shows all values"
        raise CommandFailed(f"{key.workspace}/{key.change_set} has no value {', '.join(missing[:5])}; {every}")
    return 0


def _object(id_: str, one: "Blame", *, deep: bool) -> dict[str, Any]:
    from rebaser.cli.output.change_format import blame_json, definition_json

    edited = {"edited": one.id} if deep else {}
    return blame_json(one) | {"id": id_} | edited | {"definition": definition_json(one.definition)}


def _show(found: "dict[str, Blame]", *, deep: bool) -> None:
    from rebaser.cli.output.change_format import copies_text

    copies = [copies_text(one) for one in found.values()]
    shown = any(copies) or not console.is_terminal()
    titles = ("id", *["edited"] * deep, "position", "time", "by", "request", "definition", *["copied"] * shown)
    rows: list[tuple[str | tuple[str, ...], ...]] = [
        (id_, *[one.id] * deep, *_cells(one), *[lines] * shown)
        for (id_, one), lines in zip(found.items(), copies, strict=True)
    ]
    console.table(titles, rows, styles={1 + deep: "yellow", 3 + deep: "cyan"})


def _cells(one: "Blame") -> tuple[str, ...]:
    from rebaser.cli.output.change_format import blame_place, definition_text, time_text

    time = "" if one.entry is None else time_text(one.entry.time)
    author, request = ("", "") if one.request is None else (one.request[1].author, one.request[0].request_id)
    return blame_place(one), time, author, request, definition_text(one.definition)
