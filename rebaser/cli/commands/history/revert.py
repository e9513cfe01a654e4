"""`rebaser revert`: reverts the edits of commits."""

import re
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rebaser.cli.completion import complete_target
from rebaser.cli.errors import CommandFailed, refusal, usage_error
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
from rebaser_core.errors import UnprocessableError
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import EnqueueUpdatesResponse, RebaserClient, RequestConflicts, RequestRejected
    from rebaser_client.log.positions import At
    from rebaser_core.commit import Source
    from rebaser_core.ids import ChangeSetKey

_RANGE = re.compile(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?")
NOTHING_CHANGED = (
    "nothing changed: the commits have no edits of their own, or the values already have the definitions that the"
    " revert would restore; to revert changes that a rebase took over from the target, name the target's commit with"
    " --of"
)
STYLES = {1: "dim", 2: "red", 3: "green"}


def revert(
    workspace: Workspace,
    change_set: ChangeSet,
    commits: Annotated[
        str | None,
        typer.Argument(metavar="P[..Q]", help="Log sequence of the commit, or of the first and the last commit."),
    ] = None,
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="P", help="Revert all edits after this position: a log sequence, an age or a time."),
    ] = None,
    request: Annotated[
        str | None, typer.Option(metavar="ID", help="Revert only the edits of this request in the commit P.")
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            metavar="CS",
            help="Revert commits of CS, the target of the branch, in the branch.",
            autocompletion=complete_target,
        ),
    ] = None,
    author: Author = "",
    message: Message = "",
    timeout: AnswerTimeout = 60.0,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Revert the edits of commits: each edited value gets the definition that it had before them.

    A revert is an edit like any other, and can itself be reverted. If one of the values has been edited again since,
    nothing is reverted. The command then shows the definition after the commits (base), the current definition (ours)
    and the definition that the revert would restore (theirs), and the exit code is 1.

    The commit of a rebase has no edits of its own, so reverting it changes nothing.

    With --of, commits of the target that are not newer than the base of the branch are reverted in the branch. To
    correct the target, which may be protected, apply the branch afterwards.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async
    from rebaser_client import RequestConflicts, RequestRejected

    key = checked_key(workspace, change_set)
    first, last = _range(commits, to)
    back_to = _position(to, key.change_set)
    if request is not None and (to is not None or first != last):
        raise usage_error(
            "requires the position of a single commit: write `rebaser revert WS CS P --request ID`", "--request"
        )
    if of is not None:
        checked_key(workspace, of)
        if to is not None:
            raise usage_error("cannot be combined with --of; specify the commits of the target instead", "--to")
    done: list[EnqueueUpdatesResponse | RequestConflicts] = []
    sources: list[Source | None] = []
    nothing = CommandFailed(f"there is no commit after {key.change_set}@{to}: nothing to revert")

    async def run() -> None:
        async with connect_client(nats, prefix) as client:
            start, end = (first, last) if back_to is None else await _behind(client, key, back_to)
            if end < start:
                raise nothing
            options = {"request": request, "author": author, "message": message, "timeout": timeout, "of": of}
            try:
                done.append(await client.revert(*(key.workspace, key.change_set, start, end), **options))  # type: ignore[arg-type] # the options have different types
                if start == end and of is None:
                    sources.append(await _source(client, key, start))
            except RequestConflicts as error:
                done.append(error)
            except RequestRejected as error:
                raise refused(error, key, commits or "P", of) from None

    code = run_async(run)
    if code:
        return code
    (result,) = done
    if isinstance(result, RequestConflicts):
        show_conflicts(result, json)
        raise CommandFailed(f"nothing was reverted: {result.message}; revert the newer edits first, or edit the values")
    show_success(result, json)
    if sources and not json:
        show_way_on(key, sources[0])
    return 0


def refused(
    error: "RequestRejected", key: "ChangeSetKey", commits: str, of: str | None, *, request: str | None = None
) -> CommandFailed:
    """Return an error that says why nothing was reverted, and what to do. If `request` is given, only its edits were to
    be reverted."""
    workspace, name = key.workspace, key.change_set
    branch = command("branch", workspace, "NAME", options=("--from", name))
    only = () if request is None else ("--request", request)
    revert = command("revert", workspace, "NAME", commits, options=(*only, "--of", name))
    apply = command("apply", workspace, "NAME")
    show = command("show", workspace, f"{of or name}@{commits}")
    begin = "to revert commits of a branch's target in the branch, specify the target with --of"
    advice = {
        "before_creation": begin if of is None else f"`{command('log', workspace, of)}` shows its commits",
        "protected": f"revert them in a branch, and apply it: `{branch}`, `{revert}`, `{apply}`",
        "moved": f"create another branch from {of}, and revert them there",
        "purged": f"`{command('status', workspace, of or name)}` shows how far back its history reaches",
        "no_such_position": f"`{command('log', workspace, of or name)}` shows the commits",
        "no_such_request": f"`{show}` shows the requests of the commit",
    }
    return refusal("nothing was reverted", error, key, advice)


def _range(commits: str | None, to: str | None) -> tuple[int, int]:
    """Return the log sequences of the first and the last commit in the range `commits`, or two zeros if `to` is
    given."""
    if (commits is None) == (to is None):
        raise usage_error("specify the commits to revert (1234 or 1234..1240), or --to and a position")
    if commits is None:
        return 0, 0
    matched = _RANGE.fullmatch(commits)
    if matched is None or (matched[2] is not None and int(matched[2]) < int(matched[1])):
        raise usage_error(f"{commits[:40]!r} is not a range of commits; write 1234 or 1234..1240, as in `rebaser log`")
    return int(matched[1]), int(matched[2] or matched[1])


def _position(to: str | None, name: str) -> "At | None":
    from rebaser_client.log.positions import parse_at

    try:
        return None if to is None else parse_at(to, datetime.now(UTC), name)
    except UnprocessableError as error:
        raise usage_error(error.message, "--to") from None


async def _behind(client: "RebaserClient", key: "ChangeSetKey", position: "At") -> tuple[int, int]:
    """Return the first and the last log sequence of the commits after `position`: the sequence after the newest commit
    at `position`, and the sequence of the newest commit."""
    ends = []
    for at in (position, None):
        async with aclosing(client.log(key.workspace, key.change_set, at=at)) as entries:
            ends.append(await anext(aiter(entries), None))
    standing, newest = [0 if entry is None else entry.sequence for entry in ends]
    return standing + 1, newest


async def _source(client: "RebaserClient", key: "ChangeSetKey", commit: int) -> "Source | None":
    """Return the branch that `commit` applied, or None if the commit did not apply a branch."""
    async with aclosing(client.log(key.workspace, key.change_set, at=commit)) as entries:
        entry = await anext(aiter(entries), None)
    return entry.commit.source if entry is not None and entry.kind == "rebase" else None


def show_success(response: "EnqueueUpdatesResponse", json: bool) -> None:
    """Show the commit of a revert that succeeded."""
    from rebaser_core.response import Success

    status = response.status
    assert isinstance(status, Success)  # noqa: S101 - the client raises any other status
    if json:
        console.write_json({"requestId": response.id, "commit": status.commit, "updates": status.performed})
    else:
        updates = f"{status.performed:,} update{'' if status.performed == 1 else 's'}"
        console.write_line(f"commit {status.commit}: {updates} (request {response.id})")
        if not status.performed:
            console.note(NOTHING_CHANGED)


def show_way_on(key: "ChangeSetKey", source: "Source | None") -> None:
    """Show how to continue with the changes of `source`, the branch whose apply was reverted. Show nothing if `source`
    is None."""
    if source is not None:
        branch, target = f"{source.change_set}@{source.sequence}", key.change_set
        again = command("branch", key.workspace, "NAME", options=("--from", branch, "--target", target))
        console.note(f"to go on with the changes of {source.change_set}: {again}")


def show_conflicts(error: "RequestConflicts", json: bool) -> None:
    """Show the values that have been edited again, which is why nothing was reverted."""
    from rebaser.cli.output.change_format import definition_json, definition_text

    sides = [(one.id, one.sides) for one in error.conflicts if one.sides is not None]
    if json:
        for id_, side in sides:
            parts = {"base": side.base, "ours": side.ours, "theirs": side.theirs}
            console.write_json(
                {"id": id_} | {name: definition_json(part) for name, part in parts.items()}  # type: ignore[arg-type] # never a `Remove`
            )
        return
    rows = [(id_, *map(definition_text, (side.base, side.ours, side.theirs))) for id_, side in sides]  # type: ignore[arg-type] # never a `Remove`
    console.table(("id", "base", "ours", "theirs"), rows, styles=STYLES)
