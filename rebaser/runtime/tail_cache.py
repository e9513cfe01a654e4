"""Caches copied commits, so that they are read only once when many change sets are created from one position.

If there are too many commits to copy, the cache remembers the checkpoint that was made instead.

Invariant: `get` returns a tail only if its last message is, byte for byte, the message `newest` of the caller. No two
commits have the same id, so this message identifies the log and all messages before it. This holds even if the change
set was deleted and created again, or if the stream was restored from a backup and its sequences are used again.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from rebaser_client.jetstream import StoredMessage
from rebaser_core import thresholds
from rebaser_core.commit import CheckpointRef, TailRow
from rebaser_core.ids import ChangeSetKey
from rebaser_core.record import record

ROWS_FACTOR = 12  # the memory of decoded rows, divided by the memory of their encoded form
ADDRESS = 200  # bytes of memory that the address of a blob takes
OVERHEAD = 2000  # bytes of memory that a tail takes in addition to its parts
MAX_MADE = 64  # maximum number of made checkpoints that are kept
# Seconds to wait for another task that reads the same tail. After that, the caller reads the tail itself, so that no
# task waits for a long time in an outage.
PATIENCE = 1.0


@record
class Tail:
    """Copies of the commits of a log after sequence `after`, up to the message `newest`, in the form in which a
    `create` commit contains them.

    `first` is the sequence of the oldest message that was copied. `size` is the total size of the messages' payloads,
    in bytes. `data` are the encoded rows. `rows` are the decoded rows; None if there are too many to keep. `needed` are
    the addresses of the blobs that the commits need.
    """

    after: int
    first: int
    newest: StoredMessage
    size: int
    data: bytes
    rows: tuple[TailRow, ...] | None
    needed: tuple[str, ...]

    @property
    def memory(self) -> int:
        """The estimated memory of this tail in bytes."""
        factor = 1 if self.rows is None else 1 + ROWS_FACTOR
        return len(self.data) * factor + len(self.newest.data) + ADDRESS * len(self.needed) + OVERHEAD


@record
class MadeCheckpoint:
    """A checkpoint of a parent up to the message `newest`. It was made because there were too many commits to copy.

    `instead_of` is the checkpoint to which the parent's own log referred at that time. As long as the log refers to no
    newer checkpoint, too many commits follow `instead_of` to be copied, and `checkpoint` is used in its place. `needed`
    contains the addresses of the blobs that `checkpoint` needs.
    """

    newest: StoredMessage
    instead_of: CheckpointRef | None
    checkpoint: CheckpointRef
    needed: tuple[str, ...]


class TailCache:
    """A cache of the most recently used tails, up to `tail_cache_max_bytes` of memory, and of the checkpoints that were
    made most recently.

    A caller holds the lock `making` while it makes a checkpoint, because that takes as much memory as a whole state.
    """

    def __init__(self) -> None:
        self.memory = 0
        self.making = anyio.Lock()
        self._made: OrderedDict[tuple[ChangeSetKey, bool], MadeCheckpoint] = OrderedDict()
        self._tails: OrderedDict[tuple[ChangeSetKey, int], Tail] = OrderedDict()
        self._reading: dict[tuple[ChangeSetKey, int], anyio.Event] = {}

    @asynccontextmanager
    async def reading(self, parent: ChangeSetKey, newest: StoredMessage) -> AsyncIterator[Tail | None]:
        """Enter a context in which the caller may read the tail up to `newest`. If another caller is already reading
        the same tail, first wait for that caller, for at most `PATIENCE` seconds.

        Yield the tail if it is now in the cache, and None if the caller has to read it.
        """
        position = parent, newest.sequence
        read_by_other = self._reading.get(position)
        if read_by_other is not None:
            with anyio.move_on_after(PATIENCE):
                await read_by_other.wait()
            yield self.get(parent, newest)
            return
        done = self._reading[position] = anyio.Event()
        try:
            yield self.get(parent, newest)
        finally:
            del self._reading[position]
            done.set()

    def made(self, parent: ChangeSetKey, with_changes: bool, instead_of: CheckpointRef | None) -> MadeCheckpoint | None:
        """Return the checkpoint of `parent` that was made when the parent's own checkpoint was `instead_of`, or None.

        `with_changes` tells whether the checkpoint also contains the changes of `parent` as a branch.
        """
        found = self._made.get((parent, with_changes))
        return found if found is not None and found.instead_of == instead_of else None

    def add_made(self, parent: ChangeSetKey, with_changes: bool, made: MadeCheckpoint) -> None:
        self._made.pop((parent, with_changes), None)
        self._made[parent, with_changes] = made
        if len(self._made) > MAX_MADE:
            self._made.popitem(last=False)

    def get(self, parent: ChangeSetKey, newest: StoredMessage) -> Tail | None:
        """Return the tail that ends with the message `newest` in the log of `parent`; None if it is not cached."""
        tail = self._tails.get((parent, newest.sequence))
        if tail is None or not same_message(tail.newest, newest):
            return None
        self._tails.move_to_end((parent, newest.sequence))
        return tail

    def before(self, parent: ChangeSetKey, sequence: int, after: int) -> Tail | None:
        """Return the longest cached tail of `parent` that begins after log sequence `after` and ends before `sequence`;
        None if there is none."""
        found = [
            tail
            for (key, until), tail in self._tails.items()
            if key == parent and tail.after == after and until < sequence
        ]
        return max(found, key=lambda tail: tail.newest.sequence, default=None)

    def add(self, parent: ChangeSetKey, tail: Tail) -> None:
        """Add `tail` to the cache. If all tails take too much memory, drop the least recently used ones."""
        self.drop(parent, tail.newest.sequence)
        self._tails[parent, tail.newest.sequence] = tail
        self.memory += tail.memory
        while self._tails and self.memory > thresholds.now.tail_cache_max_bytes:
            self.memory -= self._tails.popitem(last=False)[1].memory

    def drop(self, parent: ChangeSetKey, sequence: int) -> None:
        """Drop the tail of `parent` up to log sequence `sequence`, if there is one."""
        tail = self._tails.pop((parent, sequence), None)
        if tail is not None:
            self.memory -= tail.memory


def same_message(one: StoredMessage, other: StoredMessage) -> bool:
    """Return whether `one` and `other` are the same message of the same log."""
    return one.sequence == other.sequence and one.data == other.data and one.headers == other.headers
