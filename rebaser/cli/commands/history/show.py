"""`rebaser show`: shows what a commit changed."""

from functools import partial
from typing import TYPE_CHECKING

from rebaser.cli.errors import check_exists
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, NoPager, Position, Prefix, Workspace, checked_position
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError

if TYPE_CHECKING:
    from rebaser_client.log.changes import ShownCommit
    from rebaser_client.log.positions import At
    from rebaser_core.ids import ChangeSetKey

STYLES = {1: "red", 2: "green"}


def show(
    workspace: Workspace,
    change_set: Position,
    *,
    no_pager: NoPager = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show what a commit changed, by request: each value before and after.

    It shows the newest commit at or before the position; by default, the newest commit. For an update of derived
    values, it shows the results. If stdout is not a terminal, each line has the request, the id, and the definitions
    before and after the commit, separated by tabs; - means that the value did not exist. With --json, it prints one
    object.
    """
    from rebaser.cli.runner import run_async

    key, at = checked_position(workspace, change_set)
    loaded: list[ShownCommit] = []
    code = run_async(partial(_load, nats, prefix, key, at, loaded))
    if code:
        return code
    if json:
        console.write_json(_object(loaded[0]))
    else:
        from rebaser.cli.output.pager import paged

        with paged(not no_pager):
            _show(key, loaded[0])
    return 0


async def _load(nats: str, prefix: str, key: "ChangeSetKey", at: "At | None", loaded: list["ShownCommit"]) -> None:
    from rebaser.cli.connect import connect_client

    async with connect_client(nats, prefix) as client:
        try:
            loaded.append(await client.show(key.workspace, key.change_set, at))
        except UnprocessableError as error:
            if error.code == "no_such_position":
                await check_exists(client, key)
            raise


def _object(shown: "ShownCommit") -> dict[str, object]:
    from rebaser.cli.output.change_format import change_json, entry_json, request_json

    requests = [
        request_json(one.decision, one.author) | {"changes": [change_json(change) for change in one.changes]}
        for one in shown.requests
    ]
    computed = [
        {
            "id": result.id,
            "value": result.value,
            "error": None if result.fault is None else {"code": result.fault.code, "message": result.fault.message},
        }
        for result in shown.computed
    ]
    return entry_json(shown.entry) | {"requests": requests, "computed": computed}


def _show(key: "ChangeSetKey", shown: "ShownCommit") -> None:
    from rebaser.cli.output.change_format import authors_text, change_row, entry_text, time_text

    entry = shown.entry
    if not console.is_terminal():
        for one in shown.requests:
            for change in one.changes:
                console.write_row(one.decision.request_id, *change_row(change))
        for id_, text in _results(shown):
            console.write_row("", id_, "", text)
        return
    by = f" by {authors_text(entry)}" if authors_text(entry) else ""
    console.write_line(
        console.safe(
            f"{key.workspace}/{key.change_set}@{entry.sequence}, {time_text(entry.time)}{by}: {entry_text(entry)}"
        )
    )
    for one in shown.requests:
        decision = one.decision
        message = f": {one.author.message}" if one.author.message else ""
        reason = f", {decision.code}: {decision.message}" if decision.code else ""
        title = f"{decision.request_id} ({decision.outcome.value}{reason}){message}"
        console.table(("id", "before", "after"), map(change_row, one.changes), title=title, styles=STYLES)
    if shown.computed:
        console.table(("id", "result"), _results(shown))


def _results(shown: "ShownCommit") -> list[tuple[str, str]]:
    return [
        (one.id, console.json_text(one.value) if one.fault is None else f"{one.fault.code}: {one.fault.message}")
        for one in shown.computed
    ]
