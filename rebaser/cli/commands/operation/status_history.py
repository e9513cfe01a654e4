"""`rebaser status WS CS`: shows the history of a change set: its size, and how far back it reaches."""

from typing import TYPE_CHECKING

from rebaser.cli.output import console

if TYPE_CHECKING:
    from rebaser_client.log.changes import HistoryStatus
    from rebaser_core.ids import ChangeSetKey


MAX_TAKEN = 10  # applied branches that are shown


def show_history(key: "ChangeSetKey", json: bool, nats: str, prefix: str) -> int:
    """Show how many commits the log has, its size, since when it is readable, and which branches were applied."""
    from rebaser.cli.connect import connect_client
    from rebaser.cli.output.change_format import time_json, time_text
    from rebaser.cli.runner import run_async

    found: list[HistoryStatus] = []

    async def load() -> None:
        async with connect_client(nats, prefix) as client:
            found.append(await client.history_status(key.workspace, key.change_set))

    code = run_async(load)
    if code:
        return code
    (history,) = found
    since = history.since
    if json:
        console.write_json(
            {"commits": history.commits, "bytes": history.bytes, "oldest": history.oldest}
            | {"since": None if since is None else time_json(since), "protected": history.protected}
            | {"applied": [{"changeSetId": name, "commit": commit} for name, commit in history.taken]}
        )
        return 0
    console.table(
        ("commits", "size", "readable from", "since"),
        [
            (
                f"{history.commits:,}",
                console.size_text(history.bytes),
                "" if history.oldest is None else f"{key.change_set}@{history.oldest}",
                "" if since is None else time_text(since),
            )
        ],
        right=(0, 1),
        title=f"History of {key.workspace}/{key.change_set}",
        headings=True,
    )
    if history.protected:
        console.write_line("protected: it refuses edits, and accepts applied branches")
    for name, commit in history.taken[-MAX_TAKEN:]:
        console.write_line(f"applied: {name}, in commit {commit}")
    return 0
