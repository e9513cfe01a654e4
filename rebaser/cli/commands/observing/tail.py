"""`rebaser tail`: shows commits, queued requests or dead letters, and follows them."""

import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rebaser.cli.errors import DONE, INTERRUPTED, usage_error
from rebaser.cli.options import DEFAULT_NATS, Json, Nats, Prefix, checked_key, optional_change_set, optional_workspace
from rebaser.cli.output import console
from rebaser_client.log.positions import parse_time
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import check_token

if TYPE_CHECKING:
    from rebaser_client import RebaserClient
    from rebaser_client.log.entries import Entry, EntryKind, EntryStart


def tail(
    workspace: Annotated[str | None, optional_workspace("Show only messages of this workspace.")] = None,
    change_set: Annotated[str | None, optional_change_set("Show only messages of this change set.")] = None,
    *,
    requests: Annotated[bool, typer.Option("--requests", help="Show requests that wait in the queue.")] = False,
    commits: Annotated[bool, typer.Option("--commits", help="Show commits (the default).")] = False,
    dlq: Annotated[
        bool, typer.Option("--dlq", help="Show dead letters: requests that could not be processed.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Start with the newest N messages.")] = 10,
    all_: Annotated[
        bool, typer.Option("--all", help="Start with the oldest message.", allow_from_autoenv=False)
    ] = False,
    last: Annotated[bool, typer.Option("--last", help="Start with the newest message.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Show only new messages. Implies --follow.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start at a time: 90s, 10m, 2h or 1d ago, or 2026-01-31T12:00:00Z."),
    ] = None,
    from_seq: Annotated[int | None, typer.Option(metavar="N", min=1, help="Start at this stream sequence.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more messages, until Ctrl-C.")] = False,
    replay: Annotated[
        Literal["instant", "original"],
        typer.Option(
            help="instant: print stored messages at once. original: at the intervals at which they were stored.",
            allow_from_autoenv=False,
        ),
    ] = "instant",
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
) -> int:
    """Show commits, waiting requests or dead letters.

    By default, it shows the newest 10 messages and ends. Each line has the stream sequence, the time (UTC), the change
    set, the kind, the size of the message, and a summary. Values are never shown. With --json, it prints one object per
    line.

    With --follow, lines of the kind "progress" between the commits show the progress of long updates of derived values.
    """
    from rebaser.cli.runner import run_async

    if requests + commits + dlq > 1:
        raise usage_error("choose one of --requests, --commits and --dlq")
    if sum((all_, last, new, since is not None, from_seq is not None)) > 1:
        raise usage_error("choose one of --all, --last, --new, --since and --from-seq")
    if workspace is not None and change_set is not None:
        checked_key(workspace, change_set, reserved=True)
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
    return DONE if code == INTERRUPTED else code  # Ctrl-C is the normal end of this command


def _start(lines: int, *, all_: bool, last: bool, new: bool, since: str | None, from_seq: int | None) -> "EntryStart":
    from rebaser_client.log.entries import Newest

    if all_:
        return "all"
    if new:
        return "new"
    if since is not None:
        time = parse_time(since, datetime.now(UTC))
        if time is None:
            raise usage_error(
                f"--since {since!r} is not a time; write an age such as 10m, or a time such as 2026-01-31T12:00:00Z"
            )
        return time
    if from_seq is not None:
        return from_seq
    return Newest(1 if last else lines)


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
    from rebaser.cli.output.entry_format import entry_line, entry_object
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
    from rebaser.cli.output.entry_format import progress_line, progress_object

    async with aclosing(client.watch_progress(workspace, change_set)) as reports:
        async for progress in reports:
            now = time_ns()
            columns = sys.stdout.isatty()
            line = console.json_text(progress_object(progress, now)) if json else progress_line(progress, now, columns)
            console.write_line(line)
