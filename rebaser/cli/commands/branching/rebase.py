"""`rebaser rebase`: brings what the target of a branch changed into the branch."""

from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import (
    DEFAULT_NATS,
    Author,
    Branch,
    Json,
    Message,
    Nats,
    Prefix,
    Workspace,
    checked_key,
)
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError

if TYPE_CHECKING:
    from rebaser_client import Rebased, RequestRejected
    from rebaser_client.rebases import StrategyName
    from rebaser_core.ids import ChangeSetKey


def rebase(
    workspace: Workspace,
    branch: Branch,
    *,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="record|ours|theirs",
            help="For values that both sides edited: record a conflict, keep the branch's, or take the target's.",
        ),
    ] = "record",
    onto: Annotated[
        str | None, typer.Option(metavar="CS", help="The new target: the target of the present target.")
    ] = None,
    author: Author = "",
    message: Message = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")] = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Bring into a branch what its target changed since the branch was created or last rebased.

    The edits of the branch stay. If a value was edited on both sides, to different definitions, the branch keeps its
    own, and the conflict is recorded: `rebaser conflicts` shows it, and `rebaser resolve` settles it. The branch can be
    edited meanwhile, and its derived values are computed, but it cannot be applied. Conflicts do not make this command
    fail: the exit code is 0.

    `rebaser apply` rebases by itself.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async
    from rebaser_client import RequestRejected

    key = checked_key(workspace, branch)
    if onto is not None:
        checked_key(workspace, onto)
    done: list[Rebased] = []

    async def run() -> None:
        async with connect_client(nats, prefix) as client:
            try:
                done.append(
                    await client.rebase(
                        *(key.workspace, key.change_set),
                        strategy=checked_strategy(strategy),
                        onto=onto,
                        author=author,
                        message=message,
                        timeout=timeout,
                    )
                )
            except RequestRejected as error:
                raise CommandFailed(rebase_advice(error, key)) from None
            except UnprocessableError as error:
                raise CommandFailed(f"nothing was rebased: {error.message}") from None

    checked_strategy(strategy)
    code = run_async(run)
    if code:
        return code
    _show(done[0], key, json)
    return 0


def checked_strategy(text: str) -> "StrategyName":
    from rebaser.cli.errors import usage_error

    if text not in ("record", "ours", "theirs"):
        raise usage_error(f"must be record, ours or theirs, not {text[:40]!r}", "--strategy")
    return text  # type: ignore[return-value] # it is one of the three


def rebase_advice(error: "RequestRejected", key: "ChangeSetKey") -> str:
    """Return why nothing was rebased, and what to do."""
    reason = error.response.status.message  # type: ignore[union-attr] # a rejection is no success
    workspace, name = key.workspace, key.change_set
    advice = {
        "closed": f"`rebaser reopen {workspace} {name}` opens it again",
        "protected": f"`rebaser protect {workspace} {name} --off` ends the protection",
        "moved": f"give it another target with --onto, or create a new branch: `rebaser branch {workspace} NAME`",
        "not_its_target": f"`rebaser branches {workspace}` shows the target of each branch",
        "unsupported": "set REBASER_HISTORY_FOR on the servers",
    }.get(error.code)
    return f"nothing was rebased: {reason}" + (f"; {advice}" if advice else "")


def _show(done: "Rebased", key: "ChangeSetKey", json: bool) -> None:
    place = f"{done.target}@{done.base}"
    if json:
        console.write_json(
            {
                "changeSetId": key.change_set,
                "commit": done.commit,
                "target": done.target,
                "base": done.base,
                "updates": done.updates,
                "conflicts": done.conflicts,
            }
        )
    elif done.commit is None:
        console.write_line(f"{key.change_set}: nothing to do: it has all edits of {place}")
    else:
        taken = f"{done.updates:,} update{'' if done.updates == 1 else 's'}"
        console.write_line(f"{key.change_set}: rebased onto {place} (commit {done.commit}): {taken}")
    if done.conflicts and not json:
        number = f"{done.conflicts:,} conflict{'' if done.conflicts == 1 else 's'}"
        console.note(f"{number} with {done.target}: `rebaser conflicts {key.workspace} {key.change_set}` shows them")
