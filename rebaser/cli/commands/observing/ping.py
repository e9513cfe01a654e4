"""`rebaser ping`: checks whether servers answer."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.commands.observing.status import server_object, show_servers
from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_client.admin.servers import ServerInfo


def ping(
    server: Annotated[
        str | None, typer.Option(metavar="ID", help="Wait for this server. `rebaser status` shows ids.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds to wait for answers.")] = 2.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Check whether servers are alive and ready.

    Use it for health checks. The exit code is 1 if no server is ready.
    """
    from rebaser.cli.runner import run_async

    servers: list[ServerInfo] = []
    code = run_async(partial(_ping, nats, prefix, server, timeout, servers))
    if code:
        return code
    if not servers:
        silent = "no server answered" if server is None else f"server {server} did not answer"
        raise CommandFailed(f"{silent} within {timeout:g} s; `rebaser doctor` checks the installation")
    if json:
        for info in servers:
            console.write_json(server_object(info))
    else:
        show_servers(servers)
    if not any(info.ready for info in servers):
        raise CommandFailed("; ".join(f"server {info.id} is not ready: {info.trouble}" for info in servers))
    return 0


async def _ping(nats: str, prefix: str, server: str | None, timeout: float, servers: list["ServerInfo"]) -> None:  # noqa: ASYNC109 - no answer within `timeout` is a result
    from rebaser.cli.connect import ping_servers

    servers += await ping_servers(nats, prefix, server, timeout)
