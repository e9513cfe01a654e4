"""`rebaser status WS CS`: shows the history of a change set, its status, its target, and branches applied to it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import BranchInfo
    from rebaser_client.log.changes import HistoryStatus
    from rebaser_core.ids import ChangeSetKey


MAX_TAKEN = 10  # maximum number of applied branches that are shown


def show_history(key: "ChangeSetKey", json: bool, nats: str, prefix: str) -> int:
    """Show the status of the change set: its target, the size of its log, its oldest readable position, and the
    branches that were applied to it."""
    from rebaser.cli.connect import connect_client
    from rebaser.cli.runner import run_async

    found: list[tuple[HistoryStatus, BranchInfo | None]] = []

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            about = key.workspace, key.change_set
            found.append((await client.history_status(*about), await client.branch(*about)))

    code = run_async(load)
    if code:
        return code
    history, info = found[0]
    if json:
        console.write_json(_object(history, info))
        return 0
    _show(key, history)
    if history.checkpoint_blobs:
        blobs = f"{history.checkpoint_blobs:,} blob{'' if history.checkpoint_blobs == 1 else 's'}"
        console.write_line(f"newest checkpoint: {console.size_text(history.checkpoint_bytes)} in {blobs}")
    if info is not None:
        for line in status_lines(info):
            console.write_line(line)
    for name, commit in history.taken[-MAX_TAKEN:]:
        console.write_line(f"applied: {name}, in commit {commit}")
    return 0


def _object(history: "HistoryStatus", info: "BranchInfo | None") -> dict[str, Any]:
    from rebaser.cli.commands.branching.branches import branch_json
    from rebaser.cli.output.change_format import time_json

    since = None if history.since is None else time_json(history.since)
    return (
        {"commits": history.commits, "bytes": history.bytes, "oldest": history.oldest, "since": since}
        | {"checkpoint": {"blobs": history.checkpoint_blobs, "bytes": history.checkpoint_bytes}}
        | {"protected": history.protected}
        | {"applied": [{"changeSetId": name, "commit": commit} for name, commit in history.taken]}
        | {"branch": None if info is None else branch_json(info)}
    )


def _show(key: "ChangeSetKey", history: "HistoryStatus") -> None:
    from rebaser.cli.output.change_format import time_text

    console.table(
        ("commits", "size", "readable from", "since"),
        [
            (
                f"{history.commits:,}",
                console.size_text(history.bytes),
                "" if history.oldest is None else f"{key.change_set}@{history.oldest}",
                "" if history.since is None else time_text(history.since),
            )
        ],
        right=(0, 1),
        title=f"History of {key.workspace}/{key.change_set}",
        headings=True,
    )


def status_lines(info: "BranchInfo") -> Iterator[str]:
    """Yield lines about a change set: its status, its origin and target, and what prevents applying it."""
    name, target = info.change_set, info.target
    yield {
        "open": "status: open",
        "applied": f"status: closed, because it was applied to {target}",
        "abandoned": "status: closed",
        "kept": "status: closed when it was created",
        "deleted": "status: deleted",
    }.get(info.status, f"status: {info.status}")
    if info.protected:
        yield "protected: it refuses edits, and accepts applied branches"
    if info.origin is not None:
        yield f"created from {info.origin}@{info.origin_sequence}, in commit {info.born}"
    if target is None or info.status == "deleted":
        return
    changes = f"{info.changes:,} change{'' if info.changes == 1 else 's'}"
    yield f"branch of {target}: {changes} since {target}@{info.base}"
    if info.behind and info.status == "open":
        yield f"behind: {target} was edited since; `{command('rebase', info.workspace, name)}` brings these edits in"
    if info.conflicts:
        number = f"{info.conflicts:,} conflict{'' if info.conflicts == 1 else 's'}"
        yield f"{number} with {target}: `{command('conflicts', info.workspace, name)}` shows them"
