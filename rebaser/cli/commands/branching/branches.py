"""`rebaser branches`: lists change sets and their targets."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.errors import CommandFailed
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, NoPager, Prefix, Workspace, checked_key
from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_client import BranchInfo

STYLES = {0: "green", 1: "cyan", 4: "yellow"}


def branches(
    workspace: Workspace,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Also list closed and deleted change sets.")] = False,
    no_pager: NoPager = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """List change sets, with their bases and the number of values that each changed.

    The base is shown as TARGET@POSITION: the branch contains the edits of the target up to this position. A branch is
    behind if the target was edited after its base. A value that was changed back to its definition at the base may
    still count as changed. The base of an applied branch is the commit in which the target applied the branch.
    """
    from rebaser.cli.connect import connect_client
    from rebaser.cli.output.pager import paged
    from rebaser.cli.runner import run_async

    checked_key(workspace, "main")
    found: list[BranchInfo] = []

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            found.extend(await client.branches(workspace))

    code = run_async(load)
    if code:
        return code
    if not found:
        raise CommandFailed(
            f"workspace {workspace} has no change set with a commit; `rebaser list` shows the workspaces that exist"
        )
    shown = [info for info in found if all_ or info.status == "open"]
    if json:
        for info in shown:
            console.write_json(branch_json(info))
        return 0
    now = datetime.now(UTC)
    titles = ("change set", "base", "changes", "last commit", "status")
    with paged(not no_pager):
        console.table(titles, [_row(info, now) for info in shown], right=(2,), styles=STYLES)
    hidden = len(found) - len(shown)
    if hidden:
        sets = f"change set{'' if hidden == 1 else 's'}"
        console.note(f"{hidden} closed or deleted {sets} not shown; to show all, use --all")
    return 0


def branch_json(info: "BranchInfo") -> dict[str, Any]:
    """Return a branch as a JSON object."""
    from rebaser.cli.output.change_format import time_json

    return {
        "workspaceId": info.workspace,
        "changeSetId": info.change_set,
        "position": info.sequence,
        "time": time_json(info.time),
        "status": info.status,
        "from": None if info.origin is None else {"changeSetId": info.origin, "position": info.origin_sequence},
        "target": info.target,
        "base": info.base or None,
        "changes": info.changes,
        "conflicts": info.conflicts,
        "behind": info.behind,
        "protected": info.protected,
        "born": info.born or None,
        "follow": None if info.target is None else info.follow,
    }


def _row(info: "BranchInfo", now: datetime) -> tuple[str, ...]:
    base = "" if info.target is None else f"{info.target}@{info.base}"
    named = {"kept": "closed", "deleted": "deleted"}.get(info.status, f"closed ({info.status})")
    closed = [named] * (info.status != "open")
    conflicts = [f"{info.conflicts:,} conflict{'' if info.conflicts == 1 else 's'}"] * (info.conflicts > 0)
    words = closed or conflicts + ["behind"] * info.behind
    status = ", ".join(words + ["protected"] * info.protected)
    age = console.duration_text(max((now - info.time).total_seconds(), 0.0))
    return info.change_set, base, f"{info.changes:,}" if info.target else "", f"{age} ago", status
