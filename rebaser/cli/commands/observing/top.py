"""`rebaser top`: shows the activity of servers and change sets, and updates the view regularly."""

import sys
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.errors import DONE, INTERRUPTED, usage_error
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix, optional_workspace
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import check_token

if TYPE_CHECKING:
    from rebaser_client import RebaserClient
    from rebaser_client.admin.fleet import ActiveChangeSet, FleetView

DEFAULT_LIMIT = 100  # default maximum number of change sets if stdout is not a terminal


def top(
    workspace: Annotated[str | None, optional_workspace("Show only change sets of this workspace.")] = None,
    *,
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=1.0, help="Seconds between two updates.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Show the view once, after one interval, and end.", allow_from_autoenv=False)
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Show only the N most urgent change sets. Default: 100; with --json, all; on a terminal, a screenful.",
        ),
    ] = None,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show the activity of servers and change sets, and update the view regularly.

    It shows servers and active change sets, every two seconds until you press q or Ctrl-C. A change set is active if
    requests wait in its queue, if commits arrive, if an update of its derived values is due or running, or if it has a
    task. The states, from the most urgent to the least: unreadable (its log cannot be read), waiting (requests wait,
    and no commit has arrived since the previous view), updating (a long update is running), due (an update has to run),
    busy (commits arrive), owned (a server keeps it loaded). ERRORS is the number of values whose newest result is an
    error. OWNER is the server that stored the newest commit of a change set with a task. No values are loaded, and
    nothing is changed.

    Keys: q quits, s changes the order (urgency, queue, rate, name), w shows only change sets that wait or are due,
    arrows select a change set, Enter explains why it waits, Escape goes back.

    With --json, each view is one object on a line. If stdout is not a terminal, each view is two tables.
    """
    from rebaser.cli.runner import run_async

    if workspace is not None:
        try:
            check_token(workspace, "workspace")
        except UnprocessableError as error:
            raise usage_error(error.message) from None

    async def run() -> None:
        from rebaser.cli.connect import connect_client

        async with connect_client(nats, prefix) as client:
            if json or once or not (sys.stdout.isatty() and console.is_terminal()):
                await _print(client, workspace, interval, once=once, json=json, limit=limit)
            else:
                from rebaser.cli.commands.observing.top_live import LiveTop

                await LiveTop(client, workspace, interval, nats).run()

    code = run_async(run)
    return DONE if code == INTERRUPTED and not once else code  # Ctrl-C is the normal end of this command


async def _print(
    client: "RebaserClient", workspace: str | None, interval: float, *, once: bool, json: bool, limit: int | None
) -> None:
    import anyio

    async with client.fleet(workspace) as fleet:
        await fleet.look()  # the first view has no rates, because a rate needs two views
        write = partial(_write_json, limit) if json else partial(_write_tables, limit or DEFAULT_LIMIT)
        while True:
            await anyio.sleep(interval)
            write(await fleet.look())
            if once:
                return


def _write_json(limit: int | None, view: "FleetView") -> None:
    console.write_line(console.json_text(view_object(view, limit)))


def _write_tables(limit: int, view: "FleetView") -> None:
    from rebaser.cli.output import top_view

    rows = top_view.TopScreen().choose(view, limit)
    for line in top_view.headline(view):
        console.write_line(line)
    console.table(
        top_view.SERVER_TITLES,
        [top_view.server_row(server) for server in view.servers],
        right=top_view.SERVER_RIGHT,
        title=f"Servers: {len(view.servers)}",
        headings=True,
    )
    console.table(
        top_view.TITLES,
        [top_view.change_set_row(row, view.at) for row in rows],
        right=top_view.RIGHT,
        title=f"Change sets at work: {len(view.change_sets):,}",
        headings=True,
    )
    sys.stdout.flush()
    if not view.servers:
        console.note(top_view.NO_SERVER)


def view_object(view: "FleetView", limit: int | None) -> dict[str, Any]:
    """Return a view as a JSON object. Its change sets are sorted by urgency."""
    from rebaser.cli.commands.observing.status import server_object
    from rebaser.cli.output.change_format import time_json
    from rebaser.cli.output.top_view import TopScreen

    tasks = view.tasks
    return {
        "time": time_json(datetime.fromtimestamp(view.at, UTC)),
        "seconds": round(view.seconds, 3),
        "requests": view.requests,
        "oldestRequest": round(view.oldest_request, 3),
        "requestsPerSecond": round(view.requests_per_second, 3),
        "commitsPerSecond": round(view.commits_per_second, 3),
        "deadLetters": view.dead_letters,
        "tasks": None if tasks is None else {"pending": tasks.pending, "inFlight": tasks.in_flight},
        "servers": [server_object(server) for server in view.servers],
        "total": view.total,
        "active": len(view.change_sets),
        "changeSets": [_change_set_object(row) for row in TopScreen().choose(view, limit or len(view.change_sets))],
    }


def _change_set_object(row: "ActiveChangeSet") -> dict[str, Any]:
    from rebaser.cli.output.change_format import time_json

    update = row.update
    return {
        "workspaceId": row.workspace,
        "changeSetId": row.change_set,
        "state": row.activity,
        "pending": row.pending,
        "hasTask": row.has_task,
        "owner": row.owner or None,
        "errors": row.errors,
        "lastCommit": row.last_commit,
        "lastCommitTime": time_json(datetime.fromtimestamp(row.committed_at, UTC)) if row.last_commit else None,
        "commitsPerSecond": round(row.commits_per_second, 3),
        "waiting": round(row.waiting, 3),
        "debt": row.debt,
        "update": None if update is None else {"done": update.done, "total": update.total, "seconds": update.seconds},
        "problem": row.problem,
    }
