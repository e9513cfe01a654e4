"""What a command shows: tables and colours for people on a terminal, plain lines and JSON for everything else.

Invariant: results go to stdout, all else to stderr; text that came from elsewhere never reaches a terminal with
control characters in it.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


@cache
def out() -> "Console":
    """Standard output. rich leaves colours off when it is no terminal, and with NO_COLOR."""
    return _console()(highlight=False, soft_wrap=not sys.stdout.isatty())


@cache
def err() -> "Console":
    """Standard error."""
    return _console()(stderr=True, highlight=False, soft_wrap=True)


@cache
def _console() -> "type[Console]":
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """An error like any other; rich would end the process from wherever it is."""
            raise BrokenPipeError

    return Plain


def prepare_streams() -> None:
    """JSON is UTF-8 (RFC 8259) wherever it goes; a terminal that cannot show a character gets an escape.

    What the caller closed (`>&-`) is opened the wrong way round: no socket or file may take the place of a standard
    stream, and using it still fails as it should.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_the_wrong_way(number)
            file = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, file)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is None:
            continue
        if stream.isatty():
            reconfigure(errors="backslashreplace")
        else:
            reconfigure(encoding="utf-8", errors="backslashreplace")


def _open_the_wrong_way(number: int) -> None:
    """Give a standard descriptor that is closed to the null device; errors alone can be written, to nobody."""
    nowhere = os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def safe(text: str) -> str:
    """`text` without anything a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def duration_text(seconds: float) -> str:
    """A length of time as people read it."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"


def size_text(count: float) -> str:
    """Bytes as people read them, in powers of 1000."""
    for unit, digits in (("B", 0), ("kB", 1), ("MB", 1), ("GB", 2)):
        if abs(count) < 1000:
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def json_text(value: Any) -> str:
    """`value` as compact JSON (RFC 8259)."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def write_json(value: Any) -> None:
    """One JSON text on one line of stdout."""
    sys.stdout.write(json_text(value) + "\n")


def write_line(text: str = "") -> None:
    """One line of stdout, now: somebody may be waiting for it at the other end of a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """One line for people on stderr."""
    sys.stderr.write(safe(text) + "\n")
    sys.stderr.flush()


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    title: str = "",
    headings: bool = False,
) -> None:
    """A table on a terminal; elsewhere the rows alone, cells separated by tabs, one row a line.

    `right`: columns of numbers. `headings`: title and names of columns elsewhere too, and an empty line behind, for a
    command that shows several. Cells are made safe here.
    """
    if not out().is_terminal:
        if headings:
            sys.stdout.write(f"{title}\n" + "\t".join(titles) + "\n")
        for row in rows:
            sys.stdout.write("\t".join(safe(cell) for cell in row) + "\n")
        if headings:
            sys.stdout.write("\n")
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for position, name in enumerate(titles):
        grid.add_column(name, justify="right" if position in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(safe(cell)) for cell in row))
    out().print(grid)


def progress(description: str, total: int | None, *, counted: bool = False) -> "Progress":
    """A bar of bytes (`counted`: of things) on stderr, to be used as a context manager; shows nothing where that is no
    terminal."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if counted else DownloadColumn(),
        TimeRemainingColumn(),
        console=err(),
        disable=not err().is_terminal,
        transient=True,
    )
    bar.add_task(description, total=total)
    return bar
