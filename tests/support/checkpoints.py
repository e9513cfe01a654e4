"""Checkpoints whose files are stored in a dictionary."""

import json
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from rebaser_core.blobs.address import address_of
from rebaser_core.checkpoint import Chain, open_checkpoint, read_checkpoint, schema
from rebaser_core.checkpoint.writer import CheckpointDraft, WrittenCheckpoint
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.value_columns import ValueColumns


def written(state: ChangeSetState, chain: Chain | None = None, *, tracked: bool = True) -> WrittenCheckpoint:
    """Return the files of a checkpoint of `state` that follows `chain`. `tracked` is that of `CheckpointDraft`."""
    with state.view() as view:
        draft = CheckpointDraft(state, view, chain or Chain(), tracked=tracked)
        draft.copy()
    return draft.write()


class Stored:
    """The stored blobs of one change set, and the chain of checkpoints that its owner knows."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.chain = Chain()

    def put(self, made: WrittenCheckpoint) -> None:
        self.blobs |= {address_of(data): data for data in made.parts}
        self.chain = made.chain

    def write(self, state: ChangeSetState, *, tracked: bool = True) -> WrittenCheckpoint:
        made = written(state, self.chain, tracked=tracked)
        self.put(made)
        return made

    def read(self, ids: Collection[str] | None = None, others: ValueColumns | None = None) -> ChangeSetState:
        """Return the state that a loader reads; with `ids`, only these values; with `others`, it adopts their ids.
        Checks that the loader finds the same chain."""
        newest = self.blobs[self.chain.newest.address]
        reader = open_checkpoint(newest, self.chain.newest.address, ids)
        if others is not None:
            reader.adopt(others)
        for part in reader.before:
            reader.add(self.blobs[part.address])
        reader.add(newest)
        state, chain = reader.finish()
        assert chain == self.chain
        return state


def restored(state: ChangeSetState) -> ChangeSetState:
    """Return the state that is read from a complete checkpoint of `state`."""
    *before, newest = written(state).parts
    return read_checkpoint(newest, before)


Rows = list[dict[str, Any]]


def table(data: bytes) -> Rows:
    rows: Rows = pa.ipc.open_file(data).read_all().to_pylist()
    return rows


def head(data: bytes) -> dict[str, Any]:
    reader = pa.ipc.open_file(data)
    _, metadata = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
    found: dict[str, Any] = json.loads(dict(metadata)[schema.HEAD])
    return found
