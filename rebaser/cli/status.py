"""`rebaser status` and `rebaser ping`: what runs, and what waits."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli import console
from rebaser.cli.failures import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix

if TYPE_CHECKING:
    from rebaser_client.overview import Overview, ServerInfo


def status(
    workspace: Annotated[str | None, typer.Option(metavar="WS", help="Only change sets of this workspace.")] = None,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show servers, change sets and streams."""
    from rebaser.cli.running import run_async

    found: list[Overview] = []
    code = run_async(partial(_load, nats, prefix, workspace, found))
    if code:
        return code
    if json:
        console.write_json(_object(found[0]))
    else:
        _show(found[0])
    return 0


async def _load(nats: str, prefix: str, workspace: str | None, found: list["Overview"]) -> None:
    from rebaser.cli.access import connected

    async with connected(nats, prefix) as client:
        found.append(await client.status(workspace))


def _object(overview: "Overview") -> dict[str, Any]:
    return {
        "servers": [asdict(one) for one in overview.servers],
        "changeSets": [
            {
                "workspaceId": one.workspace,
                "changeSetId": one.change_set,
                "pending": one.pending,
                "hasTask": one.has_task,
                "lastCommit": one.last_commit,
                "covers": one.covers,
                "debt": one.debt,
            }
            for one in overview.change_sets
        ],
        "streams": [asdict(one) for one in overview.streams],
    }


def _show(overview: "Overview") -> None:
    _show_servers(overview.servers)
    console.table(
        ("workspace", "change set", "pending", "task", "last commit", "covers", "DVU due"),
        [
            (
                one.workspace,
                one.change_set,
                str(one.pending),
                "yes" if one.has_task else "no",
                str(one.last_commit),
                str(one.covers),
                "yes" if one.debt else "no",
            )
            for one in overview.change_sets
        ],
        right=(2, 4, 5),
        title=f"Change sets: {len(overview.change_sets):,}",
    )
    console.table(
        ("stream", "messages", "size"),
        [(one.name, f"{one.messages:,}", console.size(one.bytes)) for one in overview.streams],
        right=(1, 2),
        title="Streams",
    )
    if not overview.servers:
        console.note("no server answers; requests wait until one runs (`rebaser serve`)")


def _show_servers(servers: list["ServerInfo"]) -> None:
    console.table(
        ("server", "version", "owned", "slots", "DVU"),
        [(one.id, one.version, str(one.owned), str(one.slots), one.dvu) for one in servers],
        right=(2, 3),
        title=f"Servers: {len(servers)}",
    )


def ping(
    server: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this server has to answer; see `rebaser status`.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds to wait for answers.")] = 2.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Ask the servers whether they live. Exit code 1 if none answers: made for health checks."""
    from rebaser.cli.running import run_async

    found: list[ServerInfo] = []
    code = run_async(partial(_ping, nats, prefix, server, timeout, found))
    if code:
        return code
    if not found:
        who = "no server answered" if server is None else f"server {server} did not answer"
        raise CommandFailed(f"{who} within {timeout:g} s")
    if json:
        for one in found:
            console.write_json(asdict(one))
    else:
        _show_servers(found)
    return 0


async def _ping(nats: str, prefix: str, server: str | None, timeout: float, found: list["ServerInfo"]) -> None:  # noqa: ASYNC109 - see live_servers
    from rebaser.cli.access import live_servers

    found += await live_servers(nats, prefix, server, timeout)
