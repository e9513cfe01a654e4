"""`rebaser protect`: makes a change set refuse edits, so that it changes only when a branch is applied to it."""

from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.commands.branching.close import send_mark
from rebaser.cli.options import (
    DEFAULT_NATS,
    AnswerTimeout,
    Author,
    ChangeSet,
    Json,
    Message,
    Nats,
    Prefix,
    Workspace,
    checked_key,
)

if TYPE_CHECKING:
    from rebaser_client import EnqueueUpdatesResponse, RebaserClient


def protect(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    off: Annotated[bool, typer.Option("--off", help="Accept edits again.")] = False,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Make a change set refuse edits and reverts. It then changes only when a branch is applied to it.

    This is not access control: anyone who may send requests can also end the protection.
    """
    key = checked_key(workspace, change_set)

    async def mark(client: "RebaserClient") -> "EnqueueUpdatesResponse":
        send = client.unprotect if off else client.protect
        return await send(key.workspace, key.change_set, author=author, message=message, timeout=timeout)

    shown = "no longer protected" if off else "protected"
    return send_mark(mark, key, shown, {"protected": not off}, (nats, prefix), json=json)
