"""`rebaser blame`: shows who last defined values."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, NoPager, Position, Prefix, Workspace, checked_position
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client.log.changes import Blame


def blame(
    workspace: Workspace,
    change_set: Position,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of values.")],
    *,
    no_pager: NoPager = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show who last defined values: the commit, its time (UTC), the author and the request.

    For a derived value, this is the commit that defined its formula, not the commit with its newest result. The
    commit's position is shown even if the log no longer contains the commit; (unknown) means that servers kept no
    history when the value was defined. The exit code is 1 if an id does not exist.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async

    key, at = checked_position(workspace, change_set)
    found: dict[str, Blame] = {}

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            found.update(await client.blame(key.workspace, key.change_set, *ids, at=at))

    code = run_async(load)
    if code:
        return code
    known = list(found.values())
    if json:
        for one in known:
            console.write_json(_object(one))
    else:
        rows = [_row(one) for one in known]
        titles = ("id", "position", "time", "by", "request", "definition")
        from rebaser.cli.output.pager import paged

        with paged(not no_pager):
            console.table(titles, rows, right=(1,), styles={1: "yellow", 3: "cyan"})
    missing = [id_ for id_ in ids if id_ not in found]
    if missing:
        every = f"`{command('get', key.workspace, change_set)}` shows all values"
        raise CommandFailed(f"{key.workspace}/{key.change_set} has no value {', '.join(missing[:5])}; {every}")
    return 0


def _object(one: "Blame") -> dict[str, Any]:
    from rebaser.cli.output.change_format import definition_json, request_json, time_json

    request = None if one.request is None else request_json(*one.request)
    return {
        "id": one.id,
        "position": one.sequence or None,
        "time": None if one.entry is None else time_json(one.entry.time),
        "request": request,
        "definition": definition_json(one.definition),
    }


def _row(one: "Blame") -> tuple[str, ...]:
    from rebaser.cli.output.change_format import UNKNOWN, definition_text, time_text

    time = "" if one.entry is None else time_text(one.entry.time)
    author, request = ("", "") if one.request is None else (one.request[1].author, one.request[0].request_id)
    return (
        one.id,
        str(one.sequence) if one.sequence else UNKNOWN,
        time,
        author,
        request,
        definition_text(one.definition),
    )
