"""`rebaser delete`: deletes a change set, which can be restored as long as its history is kept."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.commands.branching.close import send_mark
from rebaser.cli.errors import CommandFailed, usage_error
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
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import EnqueueUpdatesResponse, RebaserClient


def delete(
    workspace: Workspace,
    change_set: ChangeSet,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", allow_from_autoenv=False)
    ] = False,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Delete a change set: it loses its values, and refuses all requests.

    Change sets that were created from it keep their values. As long as the history is kept, `rebaser reopen` restores
    the change set. Its name can be used for a new change set.
    """
    key = checked_key(workspace, change_set)
    if not yes:
        if not sys.stdin.isatty():
            raise usage_error(
                f"add --yes to delete {workspace}/{change_set} without confirmation, because stdin is not a terminal"
            )
        if not typer.confirm(f"delete {workspace}/{change_set}?", err=True):
            raise CommandFailed("not confirmed: nothing was deleted")

    async def mark(client: "RebaserClient") -> "EnqueueUpdatesResponse":
        return await client.delete_change_set(
            key.workspace, key.change_set, author=author, message=message, timeout=timeout
        )

    code = send_mark(mark, key, "deleted", {"status": "deleted"}, (nats, prefix), json=json)
    if not code:
        console.note(f"`{command('reopen', workspace, change_set)}` brings it back, as long as its history is kept")
    return code
