"""Files to download: the table of change sets as CSV, and the definitions of values as JSON Lines.

Invariants: a file is sent in parts of about `PART` bytes, each made only when the one before was taken. There are at
most `MAX_DOWNLOADS` at a time, because each of them holds what it reads. No cell of a table begins like a formula of a
spreadsheet.
"""

import csv
import io
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, TypeVar

import anyio.lowlevel
import structlog
from starlette.responses import StreamingResponse

from rebaser.console.reading.states import BrowsedState
from rebaser.console.resources import Document
from rebaser.console.shapes import update_line

log = structlog.get_logger(__name__)

MAX_DOWNLOADS = 4
PART = 128 * 1024  # bytes
ROWS = 200  # rows of a table in a part
FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # what a spreadsheet may take for the beginning of a formula
MAX_NAME = 200  # characters
T = TypeVar("T")


class Downloads:
    """The downloads of one console."""

    def __init__(self) -> None:
        self._open = 0

    @property
    def is_full(self) -> bool:
        return self._open >= MAX_DOWNLOADS

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Count a download: from before its document is read, which may take much memory, until it was sent."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


def response(document: Document) -> Any:
    """Return the response that sends `document`."""
    headers = {"content-disposition": f'attachment; filename="{safe_name(document.name)}"'}
    return StreamingResponse(_sent(document), media_type=document.media_type, headers=headers)


async def _sent(document: Document) -> AsyncIterator[bytes]:
    try:
        async with aclosing(document.parts) as parts:  # type: ignore[type-var]
            async for part in parts:
                yield part
    except Exception as error:  # the answer has begun: it ends without its last part, so a browser sees it failed
        log.exception("http_failed", path=document.name, exc_info=error)
        raise


def safe_name(name: str) -> str:
    """Return `name` as the name of a file, with only letters, digits, dots, underscores and hyphens."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")[:MAX_NAME] or "download"


def csv_lines(rows: Iterable[Sequence[object]]) -> bytes:
    """Return `rows` as lines of CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([_cell(cell) for cell in row] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def _cell(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    text = str(cell)
    return f"'{text}" if isinstance(cell, str) and text.lstrip(" ").startswith(FORMULA) else text


async def table(head: Sequence[str], rows: Sequence[T], cells: Callable[[T], Sequence[object]]) -> AsyncIterator[bytes]:
    """Yield a table as CSV. `cells` makes the cells of a row."""
    yield csv_lines([head])
    for start in range(0, len(rows), ROWS):
        yield csv_lines(map(cells, rows[start : start + ROWS]))
        await anyio.lowlevel.checkpoint()  # a table may be long


async def definitions(loaded: BrowsedState, ids: Sequence[str]) -> AsyncIterator[bytes]:
    """Yield the definitions of `ids` as updates in JSON Lines, as `rebaser get --updates` prints them."""
    place = 0
    while place < len(ids):
        part, place = await loaded.read(partial(_definitions, ids=ids, place=place))
        yield part


def _definitions(loaded: BrowsedState, *, ids: Sequence[str], place: int) -> tuple[bytes, int]:
    """Return the lines for the ids from `place` on, and the place of the first id that is left."""
    lines, size = list[bytes](), 0
    while place < len(ids) and size < PART:
        update = loaded.state.cells.edit_of(ids[place])
        if update is not None:
            lines.append(update_line(update))
            size += len(lines[-1])
        place += 1
    return b"".join(lines), place
