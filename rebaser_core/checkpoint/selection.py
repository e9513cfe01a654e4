"""Reads a few values of a checkpoint. Of each part, it reads the column of ids and the rows of the wanted ids.

Invariant: each wanted value equals the one that `ChainReader` returns. A part is read as if it had only the rows of the
wanted ids, and rows that name their inputs.
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
    """A `CheckpointReader` of versions 2 and 3 that reads only the values `ids`.

    The state contains the values among `ids` that exist. It tells whether there are roots, but not which, and has no
    outcomes. Without `ids`, only the newest part is needed.
    """

    def __init__(self, newest: bytes, address: str, ids: Iterable[str]) -> None:
        super().__init__(newest, address)
        self._is_base = PartFile(newest).layer == "base"
        self._wanted = pa.array(sorted(set(ids)), pa.string())
        self._ids: list[pa.StringArray] = []  # the ids of the rows of the part that were read so far
        self._read = 0  # the number of these rows
        self._found: list[tuple[NDArray[np.int64], RowBatch]] = []  # positions in the part, and rows
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
        """Load the found rows, and then the rows that only name the inputs of the found rows."""
        assert self._loader is not None  # noqa: S101 - the caller has checked it
        found = np.concatenate([places for places, _ in self._found])
        inputs = np.concatenate([batch.refs for _, batch in self._found])
        if len(inputs) and (inputs.min() < 0 or inputs.max() >= self._read):
            raise malformed("an input is not a row of its part")
        named = np.setdiff1d(inputs, found)
        position = {row: at for at, row in enumerate([*found.tolist(), *named.tolist()])}
        for _, batch in self._found:
            refs = np.array([position[row] for row in batch.refs.tolist()], np.int32)
            self._loader.add(replace(batch, refs=refs))
        names = pa.chunked_array(self._ids, pa.string()).take(pa.array(named)).to_pylist()
        if not all(names):
            raise malformed("a row has no id")
        self._loader.add(_only_named(names))

    def _finish(self) -> tuple[ChangeSetState, Chain]:
        self._close()
        self._take_head()
        if self._head.counts[1]:
            self._state.roots[OTHERS] = self._head.last
        return self._state, self._chain()


def _only_named(ids: list[str]) -> RowBatch:
    """Return the rows that only provide ids."""

    def zeros(type_: Any) -> NDArray[Any]:
        return np.zeros(len(ids), type_)

    states, none = np.full(len(ids), REFERENCE, np.uint8), np.full(len(ids), -1, np.int32)
    return RowBatch(ids, states, zeros(np.uint8), zeros(np.int64), {}, {}, none, zeros(np.int32)[:0], zeros(np.int64))
