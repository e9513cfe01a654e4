"""`rebaser rebase`: brings newer edits of a branch's target into the branch."""

from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.completion import complete_new_target
from rebaser.cli.errors import CommandFailed, refusal
from rebaser.cli.options import (
    DEFAULT_NATS,
    AnswerTimeout,
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
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import Rebased, RequestRejected
    from rebaser_client.operations.rebases import StrategyName
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
        str | None,
        typer.Option(
            metavar="CS",
            help="Make CS the target of the branch. CS must be the target of the current target.",
            autocompletion=complete_new_target,
        ),
    ] = None,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Bring newer edits of the target into a branch.

    These are all edits since the branch was created or last rebased. The edits of the branch are kept. If both sides
    gave a value different definitions, the branch keeps its own, and the conflict is recorded: `rebaser conflicts`
    shows it, and `rebaser resolve` settles it. Until then, the branch can be edited, and its derived values are
    computed, but it cannot be applied. Conflicts do not make this command fail: the exit code is 0.

    `rebaser apply` also rebases the branch. Unless the branch was created with --follow manual, a server rebases it
    after loading it and after requests to it. In all other cases, use this command to bring the branch up to date.
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
                raise rebase_refused(error, key) from None
            except UnprocessableError as error:
                raise CommandFailed(f"nothing was rebased: {error.message}") from None

    checked_strategy(strategy)
    code = run_async(run)
    if code:
        return code
    _show(done[0], key, json)
    return 0


def checked_strategy(text: str) -> "StrategyName":
    """Return `text` if it is a valid value of `--strategy`. Otherwise, raise a usage error."""
    from rebaser.cli.errors import usage_error

    if text not in ("record", "ours", "theirs"):
        raise usage_error(f"must be record, ours or theirs, not {text[:40]!r}", "--strategy")
    return text  # type: ignore[return-value] # `text` is one of the three names


def rebase_refused(error: "RequestRejected", key: "ChangeSetKey") -> CommandFailed:
    """Return an error that says why nothing was rebased, and what to do."""
    branch = f"`{command('branch', key.workspace, 'NAME')}`"
    advice = {"moved": f"give the branch another target with --onto, or create a new branch: {branch}"}
    return refusal("nothing was rebased", error, key, advice)


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
        console.write_line(f"{key.change_set}: nothing to do: it has all edits up to {place}")
    else:
        taken = f"{done.updates:,} update{'' if done.updates == 1 else 's'}"
        console.write_line(f"{key.change_set}: rebased onto {place} (commit {done.commit}): {taken}")
    if done.conflicts and not json:
        number = f"{done.conflicts:,} conflict{'' if done.conflicts == 1 else 's'}"
        console.note(f"{number} with {done.target}: `{command('conflicts', key.workspace, key.change_set)}` shows them")
