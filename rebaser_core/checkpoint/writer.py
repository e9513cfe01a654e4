"""Writes a checkpoint: the whole state, or what changed since the last one.

Invariant: what it costs is proportional to the rows it writes. While they are copied the state stands still, and that
is a small part of it.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_core import thresholds
from rebaser_core.blob_address import address_of
from rebaser_core.checkpoint import schema
from rebaser_core.checkpoint.chain import Chain, PartRef
from rebaser_core.checkpoint.part_rows import PartRows, made
from rebaser_core.checkpoint.schema import SCHEMA, write_json, write_template
from rebaser_core.ids import RequestId
from rebaser_core.messages.decision import write_decision, write_digests
from rebaser_core.state.change_set import ChangeSetState, RecordedOutcome, View


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """The parts to store, oldest first, and the chain that ends with them."""

    parts: list[bytes]
    chain: Chain


class CheckpointDraft:
    """The checkpoint of `state` at `view`, that follows `chain`; to be made before anything is folded after `view`.

    All else than cells is copied at once. `rows`: about how many it has; `whole`: whether that is all there are. Then
    `copy`, while the view is open, then `write`; each may run in another thread. If the checkpoint comes to nothing,
    `discard` it.
    """

    def __init__(self, state: ChangeSetState, view: View, chain: Chain) -> None:
        assert state.last == view.sequence  # noqa: S101 - else the parts would be of different commits
        self._view = view
        self._columns = view.columns
        self._changes = view.columns.take_changes()
        changed = self._changes.count
        self.whole = chain.worn or thresholds.now.delta_share * changed > len(state.cells)
        self.rows = len(state.cells) if self.whole else changed
        self.chain = chain = Chain() if self.whole else chain
        self._attempts = [[one.sequence, one.count, one.first_ms, one.deaths] for one in state.attempts.values()]
        self._recompute = [[asked.to_wire(), at] for asked, at in state.recompute.items()]
        self._applied = [state.applied.stream, state.applied.sequence] if state.applied else None
        self._outcomes = [*_since(chain.last, state.outcomes), *_since(chain.last, state.redriven)]
        self._kept = [len(state.outcomes), len(state.redriven)]
        self._copied: PartRows | None = None
        self._values = view.columns.size

    def discard(self) -> None:
        """The checkpoint was not written: its changes are left to the next one."""
        self._columns.give_back(self._changes)

    def copy(self) -> None:
        """Copy what is to be written."""
        self._copied = PartRows(self._view, *self._select())

    def write(self) -> WrittenCheckpoint:
        """The checkpoint as bytes."""
        view, rows = self._view, self._copied
        assert rows is not None  # noqa: S101 - it was copied
        layer = "base" if self.whole else "delta"
        parts: list[bytes] = []
        chain = replace(self.chain, last=view.sequence)
        at = 0
        while True:
            out = _File(layer, rows, at)
            at = out.fill()
            if at < rows.count:
                data = out.close()
            else:
                self._write_rest(out, chain)
                data = out.close()
            part = PartRef(address_of(data), len(data))
            parts.append(data)
            if self.whole:
                chain = replace(chain, base=(*chain.base, part))
            else:
                chain = replace(chain, deltas=(*chain.deltas, part))
            if at >= rows.count:
                return WrittenCheckpoint(parts, chain)

    def _select(self) -> tuple[NDArray[Any], list[str], NDArray[Any]]:
        """Rows to write, ids that have none and are gone, rows that are only named."""
        view = self._view
        columns = view.columns
        count = columns.count
        index = columns.index
        if self.whole:
            rows = np.flatnonzero((columns.state[:count] != 0) | (columns.uses[:count] != 0))
            return rows, [id_ for id_ in view.roots if id_ not in index], rows[:0]
        touched, gone = self._changes.touched, []
        roots = {id_ for id_, at in view.roots.items() if at > self.chain.last}
        for id_ in sorted(self._changes.gone | roots):
            if id_ in index:  # it is there again, or named
                touched[index[id_]] = 1
            else:
                gone.append(id_)
        rows = np.flatnonzero(touched[:count])
        rows = rows[(columns.state[rows] != 0) | (columns.uses[rows] != 0)]  # else it is free
        named = np.unique(columns.refs[columns.input_places(rows[columns.template[rows] >= 0])[0]])
        return rows, gone, named[~np.isin(named, rows)]

    def _write_rest(self, out: "_File", chain: Chain) -> None:
        view = self._view
        piece = thresholds.now.batch_outcomes
        for at in range(0, len(self._outcomes), piece):
            some = self._outcomes[at : at + piece]
            rows = [[one.commit, one.at_ms, write_decision(one.decision)] for one in some]
            digests = write_digests([one.decision for one in some])
            out.note({schema.OUTCOMES: rows} | ({schema.DIGESTS: digests} if digests else {}))
        head = {
            "last": view.sequence,
            "covers": view.covers,
            "applied": self._applied,
            "recompute": self._recompute,
            "attempts": self._attempts,
            "outcomes": self._kept,
            "values": self._values,
            "roots": len(view.roots),
            "base": [[part.address, part.size] for part in chain.base],
            "deltas": [[part.address, part.size] for part in chain.deltas],
        }
        out.note({schema.HEAD: head})


def _since(last: int, outcomes: dict[RequestId, RecordedOutcome]) -> list[RecordedOutcome]:
    """Those recorded after log sequence `last`: they come last.

    Who reads them forgets the oldest until the number fits. Those are the right ones, because an id that once came
    back from the dead letters is never again among the others.
    """
    found: list[RecordedOutcome] = []
    for one in reversed(outcomes.values()):
        if one.commit <= last:
            break
        found.append(one)
    return found[::-1]


class _File:
    """An Arrow IPC file with rows of `rows` from `first` on."""

    def __init__(self, layer: str, rows: PartRows, first: int) -> None:
        about = {"format": schema.FORMAT, "version": schema.VERSION, "layer": layer, "first": first}
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(
            self._sink,
            SCHEMA.with_metadata({schema.PART: write_json(about)}),
            options=pa.ipc.IpcWriteOptions(
                compression=pa.Codec("zstd", 1) if rows.count > thresholds.now.compressed else None, use_threads=False
            ),
        )
        self._rows = rows
        self._first = first
        self._end = min(first + thresholds.now.part_rows, rows.count)  # at most
        self._templates = rows.templates(first, self._end - first)
        self._definitions = pa.array(
            [write_template(rows.known[place]) for place in self._templates.tolist()], pa.large_string()
        )

    def fill(self) -> int:
        """Write as many rows as there are, or as a file has. Returns where the next file begins."""
        at, most = self._first, thresholds.now.part_bytes
        while at < self._end and (at == self._first or self._sink.tell() < most):
            batch = self._rows.batch(at, self._end - at, self._templates, self._definitions)
            self._writer.write_batch(batch)
            at += batch.num_rows
        return at

    def note(self, said: dict[bytes, Any]) -> None:
        """Write a batch without rows that says this."""
        empty = made({"id": []}, 0, self._templates, self._definitions)
        self._writer.write_batch(empty, custom_metadata={key: write_json(value) for key, value in said.items()})

    def close(self) -> bytes:
        self._writer.close()
        data: bytes = self._sink.getvalue().to_pybytes()
        return data
