"""`rebaser branch`: creates a change set as a copy of another one."""

from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.completion import complete_change_set, complete_target_of_new
from rebaser.cli.errors import CommandFailed, refusal
from rebaser.cli.options import (
    DEFAULT_NATS,
    AnswerTimeout,
    Author,
    Json,
    Message,
    Nats,
    Prefix,
    Workspace,
    checked_key,
    checked_position,
)
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import BranchInfo, RequestRejected
    from rebaser_client.operations.branches import Follow
    from rebaser_core.ids import ChangeSetKey


def branch(
    workspace: Workspace,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The new change set: 1 to 64 characters of A-Z a-z 0-9 _ -")
    ],
    *,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="CS[@POSITION]",
            envvar="REBASER_BRANCH_FROM",
            help="The parent, as it is now or at a position.",
            autocompletion=complete_change_set,
        ),
    ] = "main",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="CS",
            help="Compare the branch with CS, and apply it to CS: the parent (default), or the parent's target.",
            autocompletion=complete_target_of_new,
        ),
    ] = None,
    closed: Annotated[
        bool,
        typer.Option(
            "--closed", help="Close NAME at once: it then refuses edits, which preserves this state of the parent."
        ),
    ] = False,
    follow: Annotated[
        str,
        typer.Option(
            metavar="auto|manual",
            help="auto: a server that works on NAME also rebases it. manual: only requests change NAME.",
        ),
    ] = "auto",
    or_use: Annotated[
        bool, typer.Option("--or-use", help="Succeed if NAME exists and was created from the same parent.")
    ] = False,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Create a change set with all values of another one. Both can then be edited independently.

    The time that this takes does not depend on the number of values. Without --from, the parent is main.

    A branch follows its target: after a server has loaded the branch or decided requests to it, the server also rebases
    the branch, like `rebaser rebase`. This brings newer edits of the target into the branch. If a value was edited on
    both sides, this is a conflict. An unused branch stays as it is until its next request. With --follow manual, only
    `rebaser rebase` and `rebaser apply` bring in the edits of the target.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async
    from rebaser_client import RequestRejected

    key = checked_key(workspace, name)
    parent, at = checked_position(workspace, from_)
    if target is not None:
        checked_key(workspace, target)
    checked_follow(follow)
    made: list[BranchInfo] = []
    refused: list[RequestRejected] = []

    async def run() -> None:
        async with connect_client(nats, prefix) as client:
            try:
                made.append(
                    await client.create_branch(
                        *(workspace, name, parent.change_set),
                        at=at,
                        target=target,
                        closed=closed,
                        follow=checked_follow(follow),
                        or_use=or_use,
                        author=author,
                        message=message,
                        timeout=timeout,
                    )
                )
            except RequestRejected as error:
                refused.append(error)

    code = run_async(run)
    if code:
        return code
    if refused:
        raise _refused(refused[0], key, from_)
    _show(made[0], json)
    return 0


def checked_follow(text: str) -> "Follow":
    """Return `text` if it is a valid value of `--follow`. Otherwise, raise a usage error."""
    from rebaser.cli.errors import usage_error

    if text not in ("auto", "manual"):
        raise usage_error(f"must be auto or manual, not {text[:40]!r}", "--follow")
    return text  # type: ignore[return-value] # `text` is "auto" or "manual"


def _show(info: "BranchInfo", json: bool) -> None:
    from rebaser.cli.commands.branching.branches import branch_json

    if json:
        console.write_json(branch_json(info))
        return
    closed = "" if info.status == "open" else ", closed"
    console.write_line(f"{info.change_set}: created from {info.origin}@{info.origin_sequence}{closed}")


def _refused(error: "RequestRejected", key: "ChangeSetKey", parent: str) -> CommandFailed:
    """Return an error that says why nothing was created, and what to do."""
    workspace, origin = key.workspace, parent.partition("@")[0]
    advice = {
        "exists": f"use another name, or --or-use if it was created from {parent}",
        "no_such_change_set": f"name another parent with --from; `{command('list', workspace)}` shows all change sets",
        "purged": f"`{command('status', workspace, origin)}` shows how far back its history reaches",
        "not_its_target": "leave out --target, or name the target of the parent, which `rebaser branches` shows",
        "self": "name another parent with --from, or leave out --target",
    }
    return refusal(f"{key.workspace}/{key.change_set} was not created", error, key, advice)
