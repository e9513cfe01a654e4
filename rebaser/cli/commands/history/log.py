"""`rebaser log`: shows the commits of a change set, newest first."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebaser.cli.completion import complete_id
from rebaser.cli.errors import check_exists
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, NoPager, Position, Prefix, Workspace, checked_position
from rebaser.cli.output import console
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.shell import command

if TYPE_CHECKING:
    from rebaser_client import RebaserClient
    from rebaser_client.log.changes import LogEntry
    from rebaser_client.log.positions import At
    from rebaser_core.commit import Source
    from rebaser_core.ids import ChangeSetKey

LINES = 20  # default number of lines on a terminal
MAX_DEPTH = 8  # how deep branches of branches are shown below the commits that applied them


def log(
    workspace: Workspace,
    change_set: Position,
    id_: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Show only commits that define or remove this value.", autocompletion=complete_id
        ),
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
    source: Annotated[
        bool, typer.Option("--source", help="Below each applied branch, show its own commits that have requests.")
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

    With an ID, the list ends where the change set was created. Older commits are those of an earlier change set of this
    name; a position of theirs shows them.

    With --source, the line of an applied branch is followed by the commits of the branch: those since it was created
    or, if the list has an earlier apply of the branch, those since that apply. Positions in other change sets have the
    form CS@POSITION. In JSON, these commits are the field "source". --lines does not count them.
    """
    from rebaser.cli.runner import run_async

    key, at = checked_position(workspace, change_set)
    if lines is None and not json and console.is_terminal():
        lines = LINES
    query = _Query(key, at, id_, lines, all_, source)
    code = run_async(partial(query.load, nats, prefix))
    if code:
        return code
    if json:
        for row in query.rows:
            console.write_json(row.to_object())
    else:
        from rebaser.cli.output.pager import paged

        with paged(not no_pager):
            rows = [cells for row in query.rows for cells in row.lines()]
            console.table(("position", "time", "by", "what"), rows, styles={0: "yellow", 2: "cyan"})
    _say_rest(key, query, id_, all_)
    return 0


@dataclass(slots=True)
class _Row:
    """A line of output: the commit `entry`, or `count` commits without requests, of which `entry` is the newest.

    `oldest` is the log sequence of the oldest of these commits, or 0 if the line is for a single commit. If the commit
    is in the log of an applied branch, `name` is the branch. If the commit applied a branch, `below` are the lines for
    the commits of that branch, and `lost` says why there are none, or no more.
    """

    entry: "LogEntry"
    count: int = 1
    oldest: int = 0
    name: str = ""
    below: "list[_Row]" = field(default_factory=list)
    lost: str = ""

    @property
    def applied(self) -> "Source | None":
        """The branch that the commit applied, and its position; None if it applied none."""
        return self.entry.commit.source if self.entry.kind == "rebase" else None

    def to_object(self) -> dict[str, Any]:
        from rebaser.cli.output.change_format import entry_json

        return (
            ({"changeSetId": self.name} if self.name else {})
            | entry_json(self.entry)
            | ({"commits": self.count, "oldest": self.oldest} if self.count > 1 else {})
            | ({"source": [row.to_object() for row in self.below]} if self.below else {})
            | ({"lost": self.lost} if self.lost else {})
        )

    def lines(self, depth: int = 0) -> "Iterator[tuple[str, str, str, str]]":
        """Yield the cells of this line and of the lines below it, which are indented on a terminal."""
        from rebaser.cli.output.change_format import authors_text, entry_text, time_text

        indent = "  " * depth if console.is_terminal() else ""
        what = entry_text(self.entry) if self.count == 1 else f"{self.count} commits without requests"
        place = f"{indent}{self.name}@{self.entry.sequence}" if self.name else str(self.entry.sequence)
        yield place, time_text(self.entry.time), authors_text(self.entry), what
        for row in self.below:
            yield from row.lines(depth + 1)
        if self.lost and self.applied is not None:
            inner = "  " * (depth + 1) if console.is_terminal() else ""
            yield f"{inner}{self.applied.change_set}", "", "", f"(older commits cannot be read: {self.lost})"


def _say_rest(key: "ChangeSetKey", query: "_Query", id_: str | None, all_: bool) -> None:
    of = [] if id_ is None else [id_]
    options = [*["--all"] * all_, *["--source"] * query.source]
    if console.is_terminal() and not query.source and any(row.applied for row in query.rows):
        place = key.change_set if query.at is None else f"{key.change_set}@{query.rows[0].entry.sequence}"
        console.note(
            f"for the commits of applied branches: {command('log', key.workspace, place, *of, options=['--source'])}"
        )
    if query.rest is not None and console.is_terminal():
        names = [key.workspace, f"{key.change_set}@{query.rest}", *of]
        console.note(f"for older commits: {command('log', *names, options=options)}")
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
    source: bool
    rows: list[_Row] = field(default_factory=list)
    rest: int | None = None

    async def load(self, nats: str, prefix: str) -> None:
        from rebaser.cli.connect import connect_client

        async with connect_client(nats, prefix) as client:
            entries = client.log(self.key.workspace, self.key.change_set, self.id_, at=self.at)
            async with aclosing(entries):
                await self._collect(entries)
            if not self.rows:
                await check_exists(client, self.key)
            if self.source:
                await self._add_sources(client, self.rows)

    async def _add_sources(self, client: "RebaserClient", rows: list[_Row], depth: int = 1) -> None:
        """Add to each of `rows` that applied a branch the commits of that branch."""
        from rebaser_client.log.commits import LASTING_CODES

        older: dict[str, int] = {}  # the position of each branch that was applied before
        found: list[tuple[_Row, Source, int]] = []
        for row in reversed(rows):
            if (applied := row.applied) is not None:
                found.append((row, applied, older.get(applied.change_set, 0)))
                older[applied.change_set] = applied.sequence
        for row, applied, after in reversed(found):
            try:
                await self._add_source(client, row, applied, after)
            except (NotAllowed, UnprocessableError) as error:
                row.lost = error.message
            except TransientError as error:
                if error.code not in LASTING_CODES:
                    raise
                row.lost = error.message
            if depth < MAX_DEPTH:
                await self._add_sources(client, row.below, depth + 1)

    async def _add_source(self, client: "RebaserClient", row: _Row, applied: "Source", after: int) -> None:
        """Add to `row` the commits of the branch `applied` up to its position that are after `after`."""
        workspace, name = self.key.workspace, applied.change_set
        info = await client.branch(workspace, name, at=applied.sequence)
        if info is None or info.sequence != applied.sequence:  # it was deleted, and perhaps created again
            raise UnprocessableError(f"{name}@{applied.sequence} is not in the log any more")
        async with aclosing(client.log(workspace, name, self.id_, at=applied.sequence)) as entries:
            async for entry in entries:
                if entry.sequence < info.born or entry.sequence <= after:
                    break
                if entry.requests:
                    row.below.append(_Row(entry, name=name))

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
