"""Writes the output of commands: tables and colours on a terminal, plain lines and JSON elsewhere.

Invariant: results go to stdout, and everything else goes to stderr. Control characters in text from outside never reach
a terminal.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from json.encoder import encode_basestring
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

LAID_OUT = 100  # maximum number of rows that rich formats; `_QuickRows` formats the remaining rows
TERMINAL_VARIABLES = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})  # make rich treat a pipe as a terminal


@cache
def out() -> "Console":
    """Return the rich console for stdout. It uses no colours if stdout is not a terminal, or if NO_COLOR is set."""
    return _console()(highlight=False, soft_wrap=not sys.stdout.isatty())


@cache
def err() -> "Console":
    """Return the rich console for stderr."""
    return _console()(stderr=True, highlight=False, soft_wrap=True)


def is_terminal() -> bool:
    """Return whether stdout is a terminal, or environment variables make rich treat it as one. This imports rich only
    if necessary."""
    return (sys.stdout.isatty() or not TERMINAL_VARIABLES.isdisjoint(os.environ)) and out().is_terminal


@cache
def _console() -> "type[Console]":
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            """Raise the error, like other writes. By default, rich would end the process."""
            raise BrokenPipeError

    return Plain


def prepare_streams() -> None:
    """Set the encoding of the standard streams, and replace those that the caller closed (`>&-`).

    Files and pipes get UTF-8, as JSON requires (RFC 8259). Characters that a terminal cannot show are written as
    escapes. A closed stream is opened on the null device in the wrong direction. This keeps its descriptor from being
    reused for a socket or a file, while using stdin or stdout still fails.
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
    """Replace a closed standard descriptor with the null device, opened in the wrong direction: stdin for writing,
    stdout for reading.

    stderr is opened for writing, so that messages to it are discarded.
    """
    null = os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_WRONLY)
    if null != number:
        os.dup2(null, number)
        os.close(null)


def safe(text: str) -> str:
    """Return `text` with everything that a terminal would interpret replaced by escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def duration_text(seconds: float) -> str:
    """Return a duration for people: `12.3 s`, `456 ms` or `7.8 ms`."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"


def size_text(count: float) -> str:
    """Return a number of bytes for people, in powers of 1000: `1.5 MB`."""
    for unit, digits in (("B", 0), ("kB", 1), ("MB", 1), ("GB", 2)):
        if abs(count) < 1000:
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def json_text(value: Any) -> str:
    """Return `value` as compact JSON (RFC 8259)."""
    kind = type(value)  # for the types below, the encoder would return the same text, but take ten times as long
    if kind is str:
        return encode_basestring(value)
    if kind is int or (kind is float and isfinite(value)):
        return repr(value)
    return _ENCODER.encode(value)


def write_json(value: Any) -> None:
    """Write `value` to stdout as one line of JSON."""
    sys.stdout.write(json_text(value) + "\n")


def write_line(text: str = "") -> None:
    """Write one line to stdout and flush stdout, because a program at the other end of a pipe may be waiting for the
    line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a message for people to stderr, as one line with control characters escaped."""
    sys.stderr.write(safe(text) + "\n")
    sys.stderr.flush()


def write_row(*cells: str) -> None:
    """Write a table row for programs, as one line in which tabs separate the cells. Control characters are escaped."""
    sys.stdout.write("\t".join(map(safe, cells)) + "\n")


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str | tuple[str, ...]]],
    *,
    right: Sequence[int] = (),
    title: str = "",
    headings: bool = False,
    styles: Mapping[int, str] | None = None,
) -> None:
    """Write a table to a terminal. Elsewhere, write one line per row, with tabs between the cells.

    `right` contains the indexes of right-aligned columns. A command that shows several tables sets `headings`: the
    title, the column names and a final empty line are then written even if stdout is not a terminal. Control characters
    in cells are escaped. A tuple is a cell with several lines. `styles` maps column indexes to colours.
    """
    if not is_terminal():
        if headings:
            sys.stdout.write(f"{title}\n" + "\t".join(titles) + "\n")
        for row in rows:
            write_row(*(" ".join(_lines(cell)) for cell in row))
        if headings:
            sys.stdout.write("\n")
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if title:  # rich would wrap a title of the table itself to the width of the table
        out().print(Text(safe(title), style="italic"), soft_wrap=True)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for position, name in enumerate(titles):
        style = (styles or {}).get(position, "")
        grid.add_column(name, justify="right" if position in right else "left", overflow="fold", style=style)
    lines = [tuple("\n".join(map(safe, _lines(cell))) for cell in row) for row in rows]
    quick = _QuickRows(titles, lines, right, styles or {}) if len(lines) > LAID_OUT else None
    if quick is None or not quick.fits:
        for line in lines:
            grid.add_row(*map(Text, line))
        out().print(grid)
        return
    for column, width in zip(grid.columns, quick.widths, strict=True):
        column.min_width = width
    for line in lines[:LAID_OUT]:
        grid.add_row(*map(Text, line))
    with out().capture() as laid_out:
        out().print(grid)
    *head, end, _ = laid_out.get().split("\n")
    sys.stdout.write("\n".join([*head, *map(quick.text, lines[LAID_OUT:]), end]) + "\n")


class _QuickRows:
    """Formats the rows of a long table like rich, but at a hundredth of the cost; rich takes 0.2 ms for each row.

    `fits` says whether this is possible: each row must be a single line that fits the terminal. `widths` contains the
    column widths.
    """

    def __init__(
        self, titles: Sequence[str], lines: Sequence[tuple[str, ...]], right: Sequence[int], styles: Mapping[int, str]
    ) -> None:
        from rich.cells import cell_len
        from rich.text import Text

        self._length = cell_len
        self.widths = [max(map(self._length, column)) for column in zip(titles, *lines, strict=True)]
        one_line = not any("\n" in cell for line in lines for cell in line)
        self.fits = one_line and sum(self.widths) + 3 * len(self.widths) - 1 <= out().width
        self._columns: list[tuple[int, bool, str, str]] = []
        for position, width in enumerate(self.widths):
            with out().capture() as shown:
                out().print(Text("x", style=styles.get(position, "")), end="")
            before, _, after = shown.get().partition("x")
            self._columns.append((width, position in right, before, after))

    def text(self, line: tuple[str, ...]) -> str:
        """Return the text of a row with the cells `line`."""
        cells = []
        for cell, (width, right, before, after) in zip(line, self._columns, strict=True):
            cell = cell.rstrip() if right else cell  # noqa: PLW2901 - rich does the same
            space = " " * (width - self._length(cell))
            cells.append(f"{before}{space}{cell}{after}" if right else f"{before}{cell}{space}{after}")
        return f" {'   '.join(cells)} "


def _lines(cell: str | tuple[str, ...]) -> tuple[str, ...]:
    return (cell,) if isinstance(cell, str) else cell


def progress(description: str, total: int | None, *, counted: bool = False) -> "Progress":
    """Return a progress bar on stderr, as a context manager. It shows nothing if stderr is not a terminal.

    The bar counts bytes or, if `counted` is true, items. `total` is None if the total is unknown.
    """
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
