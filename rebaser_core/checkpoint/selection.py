"""Reads a few values from a checkpoint, without decoding the other values.

In each part, the ids of all rows are read, but only the rows of the wanted ids are decoded. The part is then loaded as
if it contained only these rows and, for each of their inputs, a row that has only an id.

Invariant: each wanted value equals the value that `ChainReader` returns.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rebaser_core.checkpoint.chain import Chain
from rebaser_core.checkpoint.part_file import PartFile
from rebaser_core.checkpoint.part_loader import REFERENCE, RowBatch
from rebaser_core.checkpoint.reader import ChainReader
from rebaser_core.encoding.payload import malformed
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.selected import OTHERS


class SelectionReader(ChainReader):
    """An implementation of `CheckpointReader`, for versions 2 and 3, that reads only the values with the ids `ids`.

    The resulting state has no outcomes. Its roots show only whether the change set has any. If `ids` is empty, only the
    newest part of the checkpoint is needed.
    """

    def __init__(self, newest: bytes, address: str, ids: Iterable[str]) -> None:
        super().__init__(newest, address)
        self._is_base = PartFile(newest).layer == "base"
        self._wanted = pa.array(sorted(set(ids)), pa.string())
        self._ids: list[pa.StringArray] = []  # the ids of all rows of the current part that have been read so far
        self._read = 0  # the number of rows of the current part that have been read so far
        self._found: list[
            tuple[NDArray[np.int64], RowBatch]
        ] = []  # pairs of the positions of wanted rows, and these rows
        if not len(self._wanted):
            self.before = ()

    def _add(self, file: PartFile) -> None:
        if len(self._wanted):
            super()._add(file)

    def _count(self) -> int:
        return self._read

    def _add_batch(self, file: PartFile, number: int) -> None:
        ids = file.ids(number)
        self._ids.append(ids)
        places = np.flatnonzero(pc.is_in(ids, self._wanted).to_numpy(zero_copy_only=False))
        if len(places):
            rows = file.batch(number)[0].take(pa.array(places))
            self._found.append((self._read + places, self._rows(rows, file.version)))
        self._read += len(ids)

    def _close(self) -> None:
        if self._loader is not None and self._found:
            self._load_found()
        super()._close()
        self._ids, self._found, self._read = [], [], 0

    def _load_found(self) -> None:
        """Load the rows of the wanted ids and then, for each of their inputs, a row that has only an id."""
        assert self._loader is not None  # noqa: S101 - the caller has checked it
        found = np.concatenate([places for places, _ in self._found])
        inputs = np.concatenate([batch.refs for _, batch in self._found])
        if len(inputs) and (inputs.min() < 0 or inputs.max() >= self._read):
            raise malformed("an input refers to a row that its part of the checkpoint does not have")
        named = np.setdiff1d(inputs, found)
        position = {row: at for at, row in enumerate([*found.tolist(), *named.tolist()])}
        for _, batch in self._found:
            refs = np.array([position[row] for row in batch.refs.tolist()], np.int32)
            self._loader.add(replace(batch, refs=refs))
        names = pa.chunked_array(self._ids, pa.string()).take(pa.array(named)).to_pylist()
        if not all(names):
            raise malformed("a row of the checkpoint has no id")
        self._loader.add(_only_named(names))

    def _finish(self) -> tuple[ChangeSetState, Chain]:
        self._close()
        self._take_head()
        if self._head.counts[1]:
            self._state.roots[OTHERS] = self._head.last
        return self._state, self._chain()


def _only_named(ids: list[str]) -> RowBatch:
    """Return rows that have the ids `ids` and nothing else."""

    def zeros(type_: Any) -> NDArray[Any]:
        return np.zeros(len(ids), type_)

    states, none = np.full(len(ids), REFERENCE, np.uint8), np.full(len(ids), -1, np.int32)
    return RowBatch(ids, states, zeros(np.uint8), zeros(np.int64), {}, {}, none, zeros(np.int32)[:0], zeros(np.int64))
