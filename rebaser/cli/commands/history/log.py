"""`rebaser log`: shows the commits of a change set, newest first."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.options import DEFAULT_NATS, Json, Nats, NoPager, Position, Prefix, Workspace, checked_position
from rebaser.cli.output import console
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client.log.changes import LogEntry
    from rebaser_client.log.positions import At
    from rebaser_core.ids import ChangeSetKey

LINES = 20  # default number of lines on a terminal


def log(
    workspace: Workspace,
    change_set: Position,
    id_: Annotated[
        str | None, typer.Argument(metavar="ID", help="Show only commits that define or remove this value.")
    ] = None,
    *,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            "-n",
            min=1,
            help="Maximum number of lines. Default: 20 for a table on a terminal, otherwise all.",
        ),
    ] = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="Show each commit without requests on a line of its own.", allow_from_autoenv=False),
    ] = False,
    no_pager: NoPager = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show the commits of a change set, newest first.

    With a position, the list starts there. Each line has the position of a commit, its time (UTC), the authors of its
    requests, and a summary. Consecutive commits without requests, such as updates of derived values, share a line.
    With --json, it prints one object per line.
    """
    from rebaser.cli.runner import run_async

    key, at = checked_position(workspace, change_set)
    if lines is None and not json and console.is_terminal():
        lines = LINES
    query = _Query(key, at, id_, lines, all_)
    code = run_async(partial(query.load, nats, prefix))
    if code:
        return code
    if json:
        for row in query.rows:
            console.write_json(row.to_object())
    else:
        from rebaser.cli.output.pager import paged

        with paged(not no_pager):
            console.table(
                ("position", "time", "by", "what"), [row.cells() for row in query.rows], styles={0: "yellow", 2: "cyan"}
            )
    _say_rest(key, query, id_, all_)
    return 0


@dataclass(slots=True)
class _Row:
    """A line of output: the commit `entry`, or `count` commits without requests, of which `entry` is the newest.

    `oldest` is the log sequence of the oldest of these commits, or 0 if the line is for a single commit.
    """

    entry: "LogEntry"
    count: int = 1
    oldest: int = 0

    def to_object(self) -> dict[str, Any]:
        from rebaser.cli.output.change_format import entry_json

        return entry_json(self.entry) | ({"commits": self.count, "oldest": self.oldest} if self.count > 1 else {})

    def cells(self) -> tuple[str, str, str, str]:
        from rebaser.cli.output.change_format import authors_text, entry_text, time_text

        what = entry_text(self.entry) if self.count == 1 else f"{self.count} commits without requests"
        return str(self.entry.sequence), time_text(self.entry.time), authors_text(self.entry), what


def _say_rest(key: "ChangeSetKey", query: "_Query", id_: str | None, all_: bool) -> None:
    if query.rest is not None and console.is_terminal():
        names = [key.workspace, f"{key.change_set}@{query.rest}", *([] if id_ is None else [id_])]
        console.note(f"for older commits: {command('log', *names, options=('--all',) if all_ else ())}")
    elif not query.rows:
        what = "" if id_ is None else f" that edit {id_}"
        console.note(f"{key.workspace}/{key.change_set} has no commits{what}")


@dataclass(slots=True)
class _Query:
    """Collects the rows of the output. `rest` is the position of the newest commit that is not shown, or None if all
    commits are shown."""

    key: "ChangeSetKey"
    at: "At | None"
    id_: str | None
    lines: int | None
    all_: bool
    rows: list[_Row] = field(default_factory=list)
    rest: int | None = None

    async def load(self, nats: str, prefix: str) -> None:
        from rebaser.cli.connect import connect_client

        async with connect_client(nats, prefix) as client:
            entries = client.log(self.key.workspace, self.key.change_set, self.id_, at=self.at)
            async with aclosing(entries):
                await self._collect(entries)

    async def _collect(self, entries: AsyncIterator["LogEntry"]) -> None:
        async for entry in entries:
            last = self.rows[-1] if self.rows else None
            if not self.all_ and not entry.requests and last is not None and not last.entry.requests:
                last.count, last.oldest = last.count + 1, entry.sequence
            elif len(self.rows) == self.lines:
                self.rest = entry.sequence
                return
            else:
                self.rows.append(_Row(entry))
