"""Collects the updates of consecutive lines into batches. Each batch is sent as one request.

Invariant: however large the input is, at most one batch plus `SPOOL_MEMORY` bytes are kept in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import NamedTuple, Self

from rebaser.cli.sending.jsonl import JsonLinesParser, UpdateLine
from rebaser_core.messages import EncodedUpdates
from rebaser_core.updates import Update

SPOOL_MEMORY = 64 * 1024 * 1024  # bytes of batches that are kept in memory


@dataclass(slots=True)
class UpdateBatch:
    """Updates from consecutive lines, limited in number and bytes. A line that exceeds the byte limit forms a batch of
    its own."""

    max_count: int
    max_bytes: int
    updates: list[Update] = field(default_factory=list)
    first_line: int = 0
    last_line: int = 0
    size: int = 0

    def has_room(self, line: UpdateLine) -> bool:
        """Return whether `line` fits into the batch."""
        return not self.updates or (len(self.updates) < self.max_count and self.size + line.size <= self.max_bytes)

    def add(self, line: UpdateLine) -> None:
        if not self.updates:
            self.first_line = line.number
        self.updates.append(line.update)
        self.last_line = line.number
        self.size += line.size

    def encoded(self) -> "EncodedBatch":
        """Return the batch with its updates encoded."""
        return EncodedBatch(EncodedUpdates.of(self.updates), self.first_line, self.last_line, self.size)

    def empty(self) -> "UpdateBatch":
        """Return an empty batch with the same limits."""
        return UpdateBatch(self.max_count, self.max_bytes)


class EncodedBatch(NamedTuple):
    """A batch that is ready to be sent. `size` is the number of bytes of its lines in the input."""

    updates: EncodedUpdates
    first_line: int
    last_line: int
    size: int


class BatchBuilder:
    """Turns chunks of bytes into batches. `lines` parses the chunks; the other arguments are the limits of a batch."""

    def __init__(self, lines: JsonLinesParser, max_count: int, max_bytes: int) -> None:
        self._lines = lines
        self._batch = UpdateBatch(max_count, max_bytes)

    def feed(self, chunk: bytes) -> Iterator[EncodedBatch]:
        """Yield the batches that `chunk` completes. Raise `UnprocessableError` for an invalid line."""
        yield from self._add(self._lines.feed(chunk))

    def finish(self) -> Iterator[EncodedBatch]:
        """Yield the last batches."""
        yield from self._add(self._lines.finish())
        if self._batch.updates:
            yield self._batch.encoded()

    def _add(self, lines: Iterator[UpdateLine]) -> Iterator[EncodedBatch]:
        for line in lines:
            if not self._batch.has_room(line):
                yield self._batch.encoded()
                self._batch = self._batch.empty()
            self._batch.add(line)


class BatchSpool:
    """Keeps the batches of a checked file until they are sent: in memory, or in a temporary file if they are large.

    This is a context manager that deletes the batches when it exits.
    """

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(SPOOL_MEMORY)  # noqa: SIM115 - closed by `__exit__`
        self._sizes: list[tuple[int, int, int, int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, batch: EncodedBatch) -> None:
        updates, first_line, last_line, size = batch
        self._file.write(updates.blob)
        self._sizes.append((len(updates.blob), updates.count, first_line, last_line, size))

    def __iter__(self) -> Iterator[EncodedBatch]:
        self._file.seek(0)
        for length, count, first_line, last_line, size in self._sizes:
            yield EncodedBatch(EncodedUpdates(self._file.read(length), count), first_line, last_line, size)
