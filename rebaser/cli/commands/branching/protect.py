"""`rebaser protect`: has a change set refuse edits, so that it changes only by applied branches."""

from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Author, ChangeSet, Json, Message, Nats, Prefix, Workspace, checked_key
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_client import EnqueueUpdatesResponse, RequestRejected


def protect(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    off: Annotated[bool, typer.Option("--off", help="Accept edits again.")] = False,
    author: Author = "",
    message: Message = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")] = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Have a change set refuse edits and reverts. It then changes only when a branch is applied to it.

    This is no access control: everyone who may send requests can also end the protection.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async
    from rebaser_client import RequestRejected
    from rebaser_core.response import Success

    key = checked_key(workspace, change_set)
    done: list[EnqueueUpdatesResponse] = []

    async def run() -> None:
        async with connect_client(nats, prefix) as client:
            mark = client.unprotect if off else client.protect
            try:
                done.append(await mark(key.workspace, key.change_set, author=author, message=message, timeout=timeout))
            except RequestRejected as error:
                raise CommandFailed(_advice(error, workspace)) from None

    code = run_async(run)
    if code:
        return code
    status = done[0].status
    assert isinstance(status, Success)  # noqa: S101 - the client raises everything else
    if json:
        console.write_json({"requestId": done[0].id, "commit": status.commit, "protected": not off})
        return 0
    console.write_line(f"{change_set}: {'no longer protected' if off else 'protected'} (commit {status.commit})")
    return 0


def _advice(error: "RequestRejected", workspace: str) -> str:
    reason = error.response.status.message  # type: ignore[union-attr] # a rejection is no success
    advice = {
        "no_such_change_set": f"; `rebaser list {workspace}` shows those that exist",
        "unsupported": "; set REBASER_HISTORY_FOR on the servers",
    }.get(error.code, "")
    return f"nothing was changed: {reason}{advice}"
