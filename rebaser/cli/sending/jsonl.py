"""Parses updates from JSON Lines (one object per line, like the output of `rebaser get --updates`) and from CSV.

Invariant: however large the input is, at most one line and one chunk are kept in memory. Every line, except blank lines
and the CSV header, becomes an update or causes an error that contains the line number. No update after an invalid line
is returned. This module does no I/O: callers pass bytes to `feed`.
"""

import csv
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rebaser.cli.sending.json_block import loads_each
from rebaser_core.encoding.envelope import ContentType, loads
from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.updates import Update, parse_update

Check = Callable[[Update], None]

_BOM = b"\xef\xbb\xbf"


class UpdateLine(NamedTuple):
    """One update, the number of its line (counted from 1), and the size of the line in bytes."""

    number: int
    size: int
    update: Update


class JsonLinesParser:
    """Parses chunks of bytes into updates. An invalid line raises `UnprocessableError` with the line number."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS, check: Check | None = None) -> None:
        """Prepare to parse lines. `check`, if given, is called with each update, and may raise `UnprocessableError`."""
        self._limits = limits
        self._check = check
        self._parts: list[bytes] = []  # the parts of the incomplete line
        self._buffered = 0  # bytes in `_parts`
        self._number = 0  # number of the last complete line

    def feed(self, chunk: bytes) -> Iterator[UpdateLine]:
        """Yield the updates in the lines that `chunk` completes."""
        start = 0
        end = chunk.rfind(b"\n")
        if end >= 0 and self._buffered + end <= self._limits.max_request_bytes:  # no line can be too long
            block = b"".join([*self._parts, chunk[:end]])
            lines = self._read_block(block)
            if lines is not None:
                self._parts.clear()
                self._buffered = 0
                yield from lines
                start = end + 1
        while (end := chunk.find(b"\n", start)) >= 0:
            self._buffer(chunk[start:end])
            yield from self._complete(1)
            start = end + 1
        self._buffer(chunk[start:])

    def finish(self) -> Iterator[UpdateLine]:
        """Yield the update in the last line if the line has no line end."""
        yield from self._complete(0)

    def _buffer(self, part: bytes) -> None:
        self._buffered += len(part)
        if self._buffered > self._limits.max_request_bytes:
            raise UnprocessableError(
                f"line {self._number + 1} is longer than {self._limits.max_request_bytes} bytes, which is the limit "
                "REBASER_LIMITS__MAX_REQUEST_BYTES",
                code="too_large",
            )
        if part:
            self._parts.append(part)

    def _complete(self, newline: int) -> Iterator[UpdateLine]:
        raw = b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        self._number += 1
        size = len(raw) + newline
        if self._number == 1:
            raw = raw.removeprefix(_BOM)
        if not raw.strip():
            return
        try:
            update = self._read(raw)
            if update is not None and self._check is not None:
                self._check(update)
        except UnprocessableError as error:
            raise UnprocessableError(f"line {self._number}: {error.message}", code=error.code) from None
        if update is not None:
            yield UpdateLine(self._number, size, update)

    def _read(self, raw: bytes) -> Update | None:
        """Return the update in a line, or None if the line contains no update."""
        return parse_update(loads(ContentType.JSON, raw, self._limits), self._limits)

    def _read_block(self, block: bytes) -> list[UpdateLine] | None:
        """Parse complete lines all at once and return their updates, or return None if a line is blank or invalid.

        In this case, the caller parses each line separately to find the error.
        """
        texts = block.split(b"\n")
        raws = loads_each(texts)
        if raws is None:
            return None
        limits, check, number = self._limits, self._check, self._number
        lines: list[UpdateLine] = []
        try:
            for raw, text in zip(raws, texts, strict=True):
                update = parse_update(raw, limits)
                if check is not None:
                    check(update)
                number += 1
                lines.append(UpdateLine(number, len(text) + 1, update))
        except UnprocessableError:
            return None
        self._number = number
        return lines


class CsvParser(JsonLinesParser):
    """Parses CSV (RFC 4180) with the columns `id` and `value`.

    A cell that is valid JSON is that value, an empty cell unsets the value, and any other cell is text. Cells cannot
    contain line ends.
    """

    _columns: tuple[str, ...] = ()

    def _read_block(self, block: bytes) -> None:
        """Return None: CSV is not parsed in blocks, so the caller passes each line to `_read`."""

    def _read(self, raw: bytes) -> Update | None:
        try:
            cells = next(csv.reader([raw.decode().rstrip("\r")], strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UnprocessableError(f"not valid CSV: {error}", code="invalid_update") from None
        if not self._columns:
            if sorted(cells) != ["id", "value"]:
                raise UnprocessableError(
                    "the first line must contain the column names: id,value", code="invalid_update"
                )
            self._columns = tuple(cells)
            return None
        if len(cells) != 2:
            raise UnprocessableError(f"a line must have 2 cells, not {len(cells)}", code="invalid_update")
        row = dict(zip(self._columns, cells, strict=True))
        id_, cell = row["id"], row["value"]
        raw_update: dict[str, object] = {"op": "unset", "id": id_}
        if cell:
            raw_update |= {"op": "set", "value": self._value(cell)}
        return parse_update(raw_update, self._limits)

    def _value(self, cell: str) -> object:
        try:
            return loads(ContentType.JSON, cell.encode(), self._limits)
        except UnprocessableError:
            return cell
