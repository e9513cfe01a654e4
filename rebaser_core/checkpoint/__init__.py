"""Writes the state of a change set to checkpoints, and reads it from them.

Invariant: a checkpoint contains the state after one commit, even if later commits are folded while it is written.
Folding the rest of the log into the state from a checkpoint gives the same result as folding the whole log.

A checkpoint is a chain of parts: first the base, which contains all rows, and then deltas, each of which contains the
rows that changed or were removed since the previous part. A commit refers to the newest part, which in turn refers to
all earlier parts. Once the deltas have grown to half the size of the base, the next checkpoint is a new base.

A part is an Arrow IPC file, or several if it is large (row numbers continue from file to file). It has one row for each
value:

- `id`: unique in a part.
- `state`: `ok`, `stale`, `error`, `unset`, or `absent` for a value that does not exist. If `state` is null, the row
  serves only as an id to which other rows refer.
- `integer`, `double`, `boolean`, `text`, `json`: the value, in one of these columns. For the value null, all of them
  are null.
- `error_code`, `error_message`, `error_origin`: why a value cannot be computed.
- `definition`: for a derived value, its function, inputs and params, as JSON. Each input has a name and a count: the
  length of its list of ids, or null if the input is a single id.
- `inputs`: for a derived value, the ids of its inputs in the order of `definition`, as row numbers of the part, counted
  from 0. A pattern also has a row; the id of this row is a NUL character followed by the pattern.
- `root`: the log sequence of the commit that last changed the value; null if all values that depend on the value are up
  to date.
- `edited`, from version 3 on: the log sequence of the commit that last defined the value; null if that is unknown.

Batches without rows follow, with JSON in their metadata. Some contain outcomes of requests. The last batch of the
newest part contains everything else that is stored. Dependents are not stored, because they can be computed from the
definitions. The `checkpoint` of the state is not stored, because the commit that refers to the checkpoint is written
later.

Version 2 lacks the column `edited` and the related fields in the last batch. Servers that keep no history write this
version, so that servers of the previous release can read their checkpoints. A chain may contain parts of both versions.
Version 1 was a single CBOR sequence; the module `v1` still reads it.

The server that owns a change set writes checkpoints with `writer`. All code that loads a state uses `open_checkpoint`.
This package imports `state`, `messages`, `encoding` and root modules of `rebaser_core`. Only `reader`, `selection`,
`writer` and the modules that they import need pyarrow.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from rebaser_core.checkpoint.chain import Chain, PartRef
from rebaser_core.checkpoint.v1 import V1Reader
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.value_columns import ValueColumns

__all__ = ["Chain", "CheckpointReader", "PartRef", "open_checkpoint", "read_checkpoint"]

ARROW = b"ARROW1"


class CheckpointReader(Protocol):
    """Reads one checkpoint, whose parts the caller provides.

    `before` lists all parts except the newest one, in order. The caller passes the content of each of them to `add`,
    then the content of the newest part, and then calls `finish`. These methods may run in any thread. They raise
    `UnprocessableError` if the bytes are not a complete checkpoint, and `UnsupportedVersion` if its format is too new.
    """

    before: tuple[PartRef, ...]

    def adopt(self, columns: ValueColumns) -> None:
        """Expect that the checkpoint has the same ids as `columns`, in the same order. If this is correct, reading is
        much faster, and both states share the ids in memory; otherwise, the result is the same.

        Call this before `add`, in the thread that changes `columns`.
        """
        ...

    def add(self, data: bytes) -> None:
        """Read the content `data` of the next part."""
        ...

    def finish(self) -> tuple[ChangeSetState, Chain]:
        """Return the state and the chain of parts from which it was read. The chain is empty if checkpoints of this
        format cannot be extended by a delta."""
        ...


def open_checkpoint(newest: bytes, address: str = "", ids: Collection[str] | None = None) -> CheckpointReader:
    """Return a reader of the checkpoint whose newest part has the content `newest` and the blob address `address`.

    `ids` are the ids of the values that are needed, or None if all values are needed. If `ids` is given, the reader
    returns a state without outcomes, which may lack all other values. Its roots only show whether the change set has
    any roots (see `selection`).
    """
    if not newest.startswith(ARROW):
        return V1Reader()
    if ids is not None:
        from rebaser_core.checkpoint.selection import SelectionReader  # noqa: PLC0415 - pyarrow is large

        return SelectionReader(newest, address, ids)
    from rebaser_core.checkpoint.reader import ChainReader  # noqa: PLC0415 - pyarrow is large

    return ChainReader(newest, address)


def read_checkpoint(newest: bytes, before: Sequence[bytes] = ()) -> ChangeSetState:
    """Return the state in a checkpoint. `newest` is the content of its newest part, and `before` contains the contents
    of all other parts, oldest first. Raise the same errors as `CheckpointReader`."""
    reader = open_checkpoint(newest)
    for data in (*before, newest):
        reader.add(data)
    return reader.finish()[0]
