"""The folded state as bytes, and back.

Invariant: a checkpoint is the state after one commit, whatever is folded while it is written, and reading it gives a
state that folds the rest of the log exactly as the original would.

A checkpoint is a chain of parts. First the base, which has all rows; then deltas, each with the rows that changed or
went away since the one before. A commit names the newest part, and that one names those before it. When the deltas
have grown to half of the base, the next checkpoint is a new base.

A part is an Arrow IPC file (several, if it is large: their rows are counted on), a row a value:

- `id`: each once in a part.
- `state`: `ok`, `stale`, `error`, `unset`. `absent` is one that does not exist (any more). Where there is none the row
  says nothing of its value, and is there to be named.
- `integer`, `double`, `boolean`, `text`, `json`: the value, in one of them; null is in none.
- `error_code`, `error_message`, `error_origin`: why it cannot be computed.
- `definition`, of a derived value: JSON of its function, its inputs (a name, and how many; null for one not in a list)
  and its params. `inputs`: these inputs in that order, as rows of the part, counted from 0. A pattern has such a row
  too: a NUL and the pattern are its id.
- `root`: the log sequence that touched it, if the values that it wakes are not yet brought up to date.

Batches without rows come behind those: with outcomes of requests, and at the end of the newest part with all else, as
JSON in their metadata. `dependents` follow from the definitions and are not stored; the state's `checkpoint` is not
either, because the commit that names this one comes after it.

Version 1 (`v1`) was one CBOR sequence; it is still read.
"""

from collections.abc import Sequence
from typing import Protocol

from rebaser_core.checkpoint.chain import Chain, PartRef
from rebaser_core.checkpoint.v1 import V1Reader
from rebaser_core.state.change_set import ChangeSetState

__all__ = ["Chain", "CheckpointReader", "PartRef", "open_checkpoint", "read_checkpoint"]

ARROW = b"ARROW1"


class CheckpointReader(Protocol):
    """Reads a checkpoint: `add` the parts `before`, in order, then the newest. All may run in another thread.

    Everything raises `UnprocessableError` for bytes that are no whole checkpoint, `UnsupportedVersion` for a newer
    format.
    """

    before: tuple[PartRef, ...]

    def add(self, data: bytes) -> None:
        """Read the next part."""
        ...

    def finish(self) -> tuple[ChangeSetState, Chain]:
        """The state, and the parts it was read from; of none if no delta can follow them."""
        ...


def open_checkpoint(newest: bytes, address: str = "") -> CheckpointReader:
    """A reader of the checkpoint whose newest part is `newest`, stored at `address`."""
    if newest.startswith(ARROW):
        from rebaser_core.checkpoint.reader import ChainReader  # noqa: PLC0415 - pyarrow is large, few come here

        return ChainReader(newest, address)
    return V1Reader()


def read_checkpoint(newest: bytes, before: Sequence[bytes] = ()) -> ChangeSetState:
    """The state in a checkpoint; raises what `CheckpointReader` raises."""
    reader = open_checkpoint(newest)
    for data in (*before, newest):
        reader.add(data)
    return reader.finish()[0]
