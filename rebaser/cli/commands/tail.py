"""`rebaser tail`: the commits, the queued requests or the dead letters of a change set, as they come."""

import re
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rebaser.cli import console
from rebaser.cli.errors import DONE, INTERRUPTED, usage_error
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix, checked_key
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import check_token

if TYPE_CHECKING:
    from rebaser_client import RebaserClient
    from rebaser_client.log.entries import Entry, EntryKind, EntryStart

_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def tail(
    workspace: Annotated[str | None, typer.Argument(metavar="WS", help="Workspace; default: all.")] = None,
    change_set: Annotated[str | None, typer.Argument(metavar="CS", help="Change set; default: all.")] = None,
    *,
    requests: Annotated[bool, typer.Option("--requests", help="Requests that wait.")] = False,
    commits: Annotated[bool, typer.Option("--commits", help="What was decided and derived; the default.")] = False,
    dlq: Annotated[bool, typer.Option("--dlq", help="Requests that could not be processed.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Begin with the newest so many.")] = 10,
    all_: Annotated[
        bool, typer.Option("--all", help="Begin with the oldest there is.", allow_from_autoenv=False)
    ] = False,
    last: Annotated[bool, typer.Option("--last", help="Begin with the newest one.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Only what comes from now on; follows.")] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin there: 90s, 10m, 2h or 1d ago, or 2026-01-31T12:00:00Z.")
    ] = None,
    from_seq: Annotated[int | None, typer.Option(metavar="N", min=1, help="Begin at this stream sequence.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more comes, until Ctrl-C.")] = False,
    replay: Annotated[
        Literal["instant", "original"],
        typer.Option(help="Original: as far apart in time as they were stored.", allow_from_autoenv=False),
    ] = "instant",
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show commits, waiting requests or dead letters.

    Begins with the newest 10 unless told otherwise and ends with the newest one, or with --follow not at all. A line is
    sequence, time (UTC), change set, kind, size of the message, and what it says; never a value. With --json one object
    a line. While commits are followed, updates that take their time tell how far they are, as lines of kind progress.
    """
    from rebaser.cli.runner import run_async

    if requests + commits + dlq > 1:
        raise usage_error("--requests, --commits and --dlq are three streams; choose one")
    if sum((all_, last, new, since is not None, from_seq is not None)) > 1:
        raise usage_error("--all, --last, --new, --since and --from-seq are five places to begin at; choose one")
    if workspace is not None and change_set is not None:
        checked_key(workspace, change_set)
    elif workspace is not None:
        try:
            check_token(workspace, "workspace")
        except UnprocessableError as error:
            raise usage_error(error.message) from None
    start = _start(lines, all_=all_, last=last, new=new, since=since, from_seq=from_seq)
    kind: EntryKind = "requests" if requests else "dlq" if dlq else "commits"
    follow = follow or new

    def read(client: "RebaserClient") -> AsyncGenerator["Entry", None]:
        return client.entries(kind, workspace, change_set, start=start, follow=follow, replay=replay)

    show_progress = partial(_show_progress, workspace, change_set, json) if follow and kind == "commits" else None
    code = run_async(
        partial(_tail, nats, prefix, read, show_progress, at_once=follow or replay == "original", json=json)
    )
    return DONE if code == INTERRUPTED else code  # Ctrl-C is how a tail ends


def _start(lines: int, *, all_: bool, last: bool, new: bool, since: str | None, from_seq: int | None) -> "EntryStart":
    from rebaser_client.log.entries import Newest

    if all_:
        return "all"
    if new:
        return "new"
    if since is not None:
        return parse_time(since, datetime.now(UTC))
    if from_seq is not None:
        return from_seq
    return Newest(1 if last else lines)


def parse_time(text: str, now: datetime) -> datetime:
    """The time that `text` names, an age or ISO 8601 (UTC unless it says otherwise); a usage error for neither."""
    age = _AGE.fullmatch(text.strip())
    try:
        if age is not None:
            return now - timedelta(**{_UNITS[age[2]]: float(age[1])})
        time = datetime.fromisoformat(text.strip())
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise usage_error(f"--since {text!r} is no time: give an age such as 10m, or 2026-01-31T12:00:00Z") from None


async def _tail(
    nats: str,
    prefix: str,
    read: Callable[["RebaserClient"], AsyncGenerator["Entry", None]],
    show_progress: Callable[["RebaserClient"], Coroutine[None, None, None]] | None,
    *,
    at_once: bool,
    json: bool,
) -> None:
    from rebaser.cli.connect import connect_client
    from rebaser.cli.entry_format import entry_line, entry_object
    from rebaser.cli.runner import best_effort

    async with (
        connect_client(nats, prefix) as client,
        best_effort(partial(show_progress, client)) if show_progress is not None else nullcontext(),
        aclosing(read(client)) as entries,
    ):
        async for entry in entries:
            line = console.json_text(entry_object(entry)) if json else entry_line(entry, sys.stdout.isatty())
            if at_once:
                console.write_line(line)
            else:
                sys.stdout.write(line + "\n")


async def _show_progress(workspace: str | None, change_set: str | None, json: bool, client: "RebaserClient") -> None:
    from rebaser.cli.entry_format import progress_line, progress_object

    async with aclosing(client.watch_progress(workspace, change_set)) as told:
        async for one in told:
            now = time_ns()
            columns = sys.stdout.isatty()
            line = console.json_text(progress_object(one, now)) if json else progress_line(one, now, columns)
            console.write_line(line)
