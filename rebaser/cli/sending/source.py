"""Reads the input of `--file`: a regular file, checked before anything is sent, or a pipe, read as data arrives.

Invariant: at most one chunk is in memory, and reading never blocks the event loop.
"""

import os
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rebaser.cli import console
from rebaser.cli.errors import CommandFailed
from rebaser_core.errors import UnprocessableError

if TYPE_CHECKING:
    from rebaser.cli.sending.jsonl import JsonLinesParser

CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class UpdateSource:
    """Where lines come from. `size` (bytes) is None for a pipe or terminal, which can be read only once.

    `start`: file offset of the first byte; the shell may have advanced standard input past the beginning of a file.
    `checked`: whether formulas are checked, too.
    """

    name: str
    descriptor: int
    size: int | None
    start: int
    checked: bool = True

    def lines(self) -> "JsonLinesParser":
        """Return a parser for this input, chosen by the name: CSV if it ends in `.csv`, else JSON Lines."""
        from rebaser.cli.sending.jsonl import CsvParser, JsonLinesParser
        from rebaser.settings import load_settings
        from rebaser_core.definitions import check_definition

        kind = CsvParser if self.name.lower().endswith(".csv") else JsonLinesParser
        return kind(load_settings().limits, partial(check_definition, formulas=self.checked))

    def check(self) -> None:
        """Read a regular file to its end, to find a bad line before anything is sent. A pipe is not checked.

        Raises `CommandFailed` with the number of the bad line.
        """
        if self.size is None:
            return
        lines = self.lines()
        try:
            with console.progress("checking", self.size) as bar:
                while chunk := os.read(self.descriptor, CHUNK):
                    for _ in lines.feed(chunk):
                        pass
                    bar.advance(bar.task_ids[0], len(chunk))
                for _ in lines.finish():
                    pass
        except UnprocessableError as error:
            hint = " (--unchecked sends it anyway)" if error.code == "invalid_formula" else ""
            raise CommandFailed(f"{self.name}, {error.message}{hint}; nothing was sent") from None
        os.lseek(self.descriptor, self.start, os.SEEK_SET)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield all bytes, from the start."""
        import anyio
        from anyio import to_thread

        while True:
            if self.size is None:
                # A thread that reads an idle pipe could not be interrupted, so wait for data first. A device that is
                # always ready (/dev/null) does not support this and does not need it.
                with suppress(PermissionError):
                    await anyio.wait_readable(self.descriptor)
            chunk = await to_thread.run_sync(os.read, self.descriptor, CHUNK)
            if not chunk:
                return
            yield chunk


@contextmanager
def open_source(file: str | None, *, checked: bool = True) -> Iterator[UpdateSource | None]:
    """Yield the input that `--file` names; None if the option was not given."""
    if file is None:
        yield None
    elif file == "-":
        try:
            os.read(sys.stdin.fileno(), 0)
        except OSError:
            raise CommandFailed("standard input is closed") from None
        yield _source("standard input", sys.stdin.fileno(), checked)
    else:
        with Path(file).open("rb", buffering=0) as stream:
            yield _source(file, stream.fileno(), checked)


def _source(name: str, descriptor: int, checked: bool) -> UpdateSource:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return UpdateSource(name, descriptor, None, 0, checked)
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    return UpdateSource(name, descriptor, max(0, status.st_size - start), start, checked)
