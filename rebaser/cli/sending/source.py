"""Reads the input of `--file`: a regular file, which is checked before anything is sent, or a pipe, which is read as
data arrives.

Invariant: the input is read, parsed and checked only once. Reading never blocks the event loop.
"""

import os
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rebaser.cli.errors import CommandFailed
from rebaser.cli.output import console
from rebaser_core.errors import UnprocessableError

if TYPE_CHECKING:
    from rebaser.cli.sending.batches import BatchBuilder, BatchSpool, EncodedBatch

CHUNK = 256 * 1024
BATCH_BYTES = 4 * 1024 * 1024  # maximum bytes of lines in one request; CBOR may need twice as many bytes


@dataclass(slots=True)
class UpdateSource:
    """The input that `--file` specifies. `size` is its number of bytes, or None for a pipe or a terminal.

    `checked` says whether formulas are also checked.
    """

    name: str
    descriptor: int
    size: int | None
    checked: bool = True
    _spool: "BatchSpool | None" = None  # the batches that `check` has read
    _resources: ExitStack = field(default_factory=ExitStack)

    def check(self, max_updates: int) -> None:
        """Read a regular file to its end, to find an invalid line before anything is sent. A pipe is not checked.

        Afterwards, `batches` yields the batches that this call has read. If a line is invalid, raise `CommandFailed`
        with its number.
        """
        if self.size is None:
            return
        from rebaser.cli.runner import collector_paused
        from rebaser.cli.sending.batches import BatchSpool

        builder = self._builder(max_updates)
        self._spool = self._resources.enter_context(BatchSpool())
        try:
            with collector_paused(), console.progress("checking", self.size) as bar:
                while chunk := os.read(self.descriptor, CHUNK):
                    for batch in builder.feed(chunk):
                        self._spool.add(batch)
                    bar.advance(bar.task_ids[0], len(chunk))
                for batch in builder.finish():
                    self._spool.add(batch)
        except UnprocessableError as error:
            hint = " (--unchecked sends it anyway)" if error.code == "invalid_formula" else ""
            raise CommandFailed(f"{self.name}, {error.message}{hint}; nothing was sent") from None

    async def batches(self, max_updates: int) -> AsyncGenerator["EncodedBatch", None]:
        """Yield batches of all updates, in order. If a line that `check` did not read is invalid, raise
        `UnprocessableError`."""
        if self._spool is not None:
            for batch in self._spool:
                yield batch
            return
        builder = self._builder(max_updates)
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                for batch in builder.feed(chunk):
                    yield batch
        for batch in builder.finish():
            yield batch

    def close(self) -> None:
        """Free the batches that `check` has kept."""
        self._resources.close()

    def _builder(self, max_updates: int) -> "BatchBuilder":
        """Return a builder for this input: for CSV if the name ends in `.csv`, otherwise for JSON Lines."""
        from rebaser.cli.sending.batches import BatchBuilder
        from rebaser.cli.sending.jsonl import CsvParser, JsonLinesParser
        from rebaser.client_settings import load_client_settings
        from rebaser_core.definitions import check_definition

        limits = load_client_settings().limits
        kind = CsvParser if self.name.lower().endswith(".csv") else JsonLinesParser
        lines = kind(limits, partial(check_definition, formulas=self.checked))
        return BatchBuilder(lines, max_updates, min(BATCH_BYTES, limits.max_request_bytes // 4))

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield all bytes, from the start."""
        import anyio
        from anyio import to_thread

        while True:
            if self.size is None:
                # A thread that is reading an idle pipe could not be interrupted, so wait for data first. A device that
                # is always ready (/dev/null) does not support waiting, and does not need it.
                with suppress(PermissionError):
                    await anyio.wait_readable(self.descriptor)
            chunk = await to_thread.run_sync(os.read, self.descriptor, CHUNK)
            if not chunk:
                return
            yield chunk


@contextmanager
def open_source(file: str | None, *, checked: bool = True) -> Iterator[UpdateSource | None]:
    """Yield the input that `--file` specifies, or None if the option was not given."""
    if file is None:
        yield None
    elif file == "-":
        try:
            os.read(sys.stdin.fileno(), 0)
        except OSError:
            raise CommandFailed("standard input is closed; redirect a file or a pipe to it") from None
        with closing(_source("standard input", sys.stdin.fileno(), checked)) as source:
            yield source
    else:
        with Path(file).open("rb", buffering=0) as stream, closing(_source(file, stream.fileno(), checked)) as source:
            yield source


def _source(name: str, descriptor: int, checked: bool) -> UpdateSource:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return UpdateSource(name, descriptor, None, checked)
    # If standard input is a file, an earlier command in the shell may have read a part of it.
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    return UpdateSource(name, descriptor, max(0, status.st_size - start), checked)
