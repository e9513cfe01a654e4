"""The bytes behind `--file`: a regular file, which can be checked before anything is sent, or a pipe, read as it comes.

Invariant: memory is one chunk; reading a pipe never blocks the event loop.
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
    from rebaser.cli.sending.jsonl import UpdateLines

CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Source:
    """Where lines come from. `size` (bytes) is None for a pipe or a terminal, which can be read only once."""

    name: str
    descriptor: int
    size: int | None
    start: int
    checked: bool = True  # formulas, too

    def lines(self) -> "UpdateLines":
        """Reads the bytes."""
        from rebaser.cli.sending.jsonl import CsvLines, UpdateLines
        from rebaser.settings import load_settings
        from rebaser_core.definitions import check_definition

        kind = CsvLines if self.name.lower().endswith(".csv") else UpdateLines
        return kind(load_settings().limits, partial(check_definition, formulas=self.checked))

    def check(self) -> None:
        """Read a regular file to its end, so that a bad line is known before anything is sent.

        Raises `CommandFailed` that names the line. A pipe is left alone.
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
            hint = " (--unchecked sends it all the same)" if error.code == "invalid_formula" else ""
            raise CommandFailed(f"{self.name}, {error.message}{hint}; nothing was sent") from None
        os.lseek(self.descriptor, self.start, os.SEEK_SET)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes, from the start."""
        import anyio

        while True:
            if self.size is None:
                # A blocking read would keep the loop from Ctrl-C and from NATS. A device that is always ready
                # (/dev/null) cannot be waited for, and need not be.
                with suppress(PermissionError):
                    await anyio.wait_readable(self.descriptor)
            chunk = os.read(self.descriptor, CHUNK)
            if not chunk:
                return
            yield chunk


@contextmanager
def opened(file: str | None, *, checked: bool = True) -> Iterator[Source | None]:
    """The source that `--file` names; None if it was not given."""
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


def _source(name: str, descriptor: int, checked: bool) -> Source:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return Source(name, descriptor, None, 0, checked)
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    return Source(name, descriptor, max(0, status.st_size - start), start, checked)
