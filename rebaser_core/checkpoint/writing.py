"""Writes a checkpoint: the whole state, or what changed since the last one.

Invariant: what it costs is proportional to the rows it writes; columns are copied a batch at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_core.address import address_of
from rebaser_core.checkpoint import schema
from rebaser_core.checkpoint.chain import Chain, Part
from rebaser_core.checkpoint.schema import SCHEMA, write_json, write_shape
from rebaser_core.codes import FALSE, FLOAT, INT, OTHER, TRUE
from rebaser_core.messages.commit import write_decision
from rebaser_core.state import ChangeSetState, Recorded, View

BATCH = 65_536  # rows: some ten milliseconds
BATCH_BYTES = 16 * 1024 * 1024  # of texts in a batch, if it has more rows than one
BATCH_INPUTS = 4_000_000  # the same
FILE = 1_048_576  # rows
FILE_BYTES = 64 * 1024 * 1024
WORTHWHILE = 1_000  # rows from which on a part is compressed
OUTCOMES = 2_000  # in one metadata
CHANGED = 2  # if one in so many values changed, a new base costs little more


@dataclass(frozen=True, slots=True)
class Written:
    """The parts to store, oldest first, and the chain that ends with them."""

    parts: list[bytes]
    chain: Chain


class Draft:
    """The checkpoint of `state` at `view`, that follows `chain`; to be made before anything is folded after `view`.

    All else than cells is copied at once. `rows`: about how many it has; `whole`: whether that is all there are.
    `write` may run in another thread, while the view is open. If the checkpoint comes to nothing, `discard` it.
    """

    def __init__(self, state: ChangeSetState, view: View, chain: Chain) -> None:
        assert state.last == view.sequence  # noqa: S101 - else the parts would be of different commits
        self._view = view
        self._changes = view.columns.take_changes()
        changed = self._changes.count
        self.whole = chain.worn or CHANGED * changed > len(state.cells)
        self.rows = len(state.cells) if self.whole else changed
        self.chain = chain = Chain() if self.whole else chain
        self._attempts = [[one.sequence, one.count, one.first_ms, one.deaths] for one in state.attempts.values()]
        self._recompute = [[asked.to_wire(), at] for asked, at in state.recompute.items()]
        self._applied = [state.applied.stream, state.applied.sequence] if state.applied else None
        self._outcomes = [*_since(chain.last, state.outcomes), *_since(chain.last, state.redriven)]
        self._kept = [len(state.outcomes), len(state.redriven)]

    def discard(self) -> None:
        """The checkpoint was not written: its changes are left to the next one."""
        self._view.columns.give_back(self._changes)

    def write(self) -> Written:
        """The checkpoint as bytes."""
        view = self._view
        rows = _Rows(view, *self._select())
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
            part = Part(address_of(data), len(data))
            parts.append(data)
            if self.whole:
                chain = replace(chain, base=(*chain.base, part))
            else:
                chain = replace(chain, deltas=(*chain.deltas, part))
            if at >= rows.count:
                return Written(parts, chain)

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
        named = np.unique(columns.refs[columns.places(rows[columns.shape[rows] >= 0])[0]])
        return rows, gone, named[~np.isin(named, rows)]

    def _write_rest(self, out: "_File", chain: Chain) -> None:
        view = self._view
        for at in range(0, len(self._outcomes), OUTCOMES):
            some = self._outcomes[at : at + OUTCOMES]
            rows = [[one.commit, one.at_ms, write_decision(one.decision)] for one in some]
            out.note(schema.OUTCOMES, rows)
        head = {
            "last": view.sequence,
            "covers": view.covers,
            "applied": self._applied,
            "recompute": self._recompute,
            "attempts": self._attempts,
            "outcomes": self._kept,
            "values": view.columns.size,
            "roots": len(view.roots),
            "base": [[part.address, part.size] for part in chain.base],
            "deltas": [[part.address, part.size] for part in chain.deltas],
        }
        out.note(schema.HEAD, head)


def _since(last: int, outcomes: dict[str, Recorded]) -> list[Recorded]:
    """Those recorded after log sequence `last`: they come last.

    Who reads them forgets the oldest until the number fits. Those are the right ones, because an id that once came
    back from the dead letters is never again among the others.
    """
    found: list[Recorded] = []
    for one in reversed(outcomes.values()):
        if one.commit <= last:
            break
        found.append(one)
    return found[::-1]


class _Rows:
    """The rows of a part: `rows` of the columns, then `gone`, then `named`. Makes batches of them."""

    def __init__(self, view: View, rows: NDArray[Any], gone: list[str], named: NDArray[Any]) -> None:
        self.rows, self.gone, self.named = rows, gone, named
        self.count = len(rows) + len(gone) + len(named)
        self.columns = view.columns
        self._roots = view.roots
        self._places = np.empty(view.columns.count, np.int32)  # of rows in the part
        self._places[rows] = np.arange(len(rows), dtype=np.int32)
        self._places[named] = np.arange(len(rows) + len(gone), self.count, dtype=np.int32)

    def shapes(self, at: int, count: int) -> NDArray[Any]:
        """Those of `count` rows from `at` on."""
        found = np.unique(self.columns.shape[self.rows[at : at + count]])
        return found[found >= 0]

    def batch(self, at: int, most: int, shapes: NDArray[Any], definitions: pa.Array) -> pa.RecordBatch:
        """The next batch, from row `at` on, of at most `most` rows; `definitions` are those of `shapes`."""
        gone, named = len(self.rows), len(self.rows) + len(self.gone)
        sections: list[tuple[int, Any, Callable[[Any], dict[str, Any] | None]]] = [
            (0, self.rows, self._cells),
            (gone, self.gone, self._absent),
            (named, self.named, self._named),
        ]
        for first, items, make in sections:
            if at < first + len(items):
                some = items[at - first : at - first + min(most, BATCH)]
                while (columns := make(some)) is None:
                    some = some[: len(some) // 2]
                return self.made(columns, len(some), shapes, definitions)
        raise AssertionError("there are no more rows")

    def made(self, columns: dict[str, Any], count: int, shapes: NDArray[Any], definitions: pa.Array) -> pa.RecordBatch:
        shape = columns.pop("definition", np.full(count, -1))
        columns["definition"] = pa.DictionaryArray.from_arrays(
            pa.array(np.searchsorted(shapes, shape).astype(np.int32), mask=shape < 0), definitions
        )
        state = columns.pop("state", None)
        columns["state"] = pa.DictionaryArray.from_arrays(
            pa.nulls(count, pa.int8()) if state is None else pa.array(state.astype(np.int8)), schema.STATES
        )
        if self._roots:
            columns["root"] = pa.array([self._roots.get(id_) for id_ in columns["id"]], pa.int64())
        columns["id"] = pa.array(columns["id"], pa.string())
        arrays = [columns[one.name] if one.name in columns else pa.nulls(count, one.type) for one in SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _absent(self, ids: list[str]) -> dict[str, Any]:
        return {"id": ids, "state": np.zeros(len(ids), np.int8)}

    def _named(self, rows: NDArray[Any]) -> dict[str, Any]:
        return {"id": self._ids(rows)}

    def _ids(self, rows: NDArray[Any]) -> list[str]:
        return list(map(self.columns.ids.__getitem__, rows.tolist()))

    def _cells(self, rows: NDArray[Any]) -> dict[str, Any] | None:
        """Columns of `rows`; None if it is too much for one batch."""
        columns = self.columns
        shape = columns.shape[rows]
        defined = shape >= 0
        places, _, counts = columns.places(rows[defined])
        if len(places) > BATCH_INPUTS and len(rows) > 1:
            return None
        others = self._others(rows)
        faults = self._faults(rows)
        if others is None or faults is None:
            return None
        offsets = np.zeros(len(rows) + 1, np.int32)
        offsets[1:][defined] = counts
        kind, num = columns.kind[rows], columns.num[rows]
        inputs = pa.ListArray.from_arrays(
            pa.array(np.cumsum(offsets, dtype=np.int32)),
            pa.array(self._places[columns.refs[places]]),
            mask=pa.array(~defined),
        )
        return {
            "id": self._ids(rows),
            "state": columns.state[rows],
            "integer": pa.array(np.where(kind == INT, num, 0), mask=kind != INT),
            "double": pa.array(np.where(kind == FLOAT, num, 0).view(np.float64), mask=kind != FLOAT),
            "boolean": pa.array(kind == TRUE, mask=(kind != TRUE) & (kind != FALSE)),
            "definition": shape,
            "inputs": inputs,
            **others,
            **faults,
        }

    def _others(self, rows: NDArray[Any]) -> dict[str, Any] | None:
        at = np.flatnonzero(self.columns.kind[rows] == OTHER)
        values = list(map(self.columns.other.__getitem__, rows[at].tolist()))
        is_text = np.fromiter((type(one) is str for one in values), np.bool_, len(values))
        texts = [one for one in values if type(one) is str]
        jsons = [write_json(one) for one in values if type(one) is not str]
        if _too_much(texts, jsons) and len(rows) > 1:
            return None
        return {
            "text": _spread(texts, at[is_text], len(rows), pa.large_string()),
            "json": _spread(jsons, at[~is_text], len(rows), pa.large_string()),
        }

    def _faults(self, rows: NDArray[Any]) -> dict[str, Any] | None:
        faults = self.columns.faults
        found = [(at, faults[row]) for at, row in enumerate(rows.tolist()) if row in faults] if faults else []
        messages = [fault.message for _, fault in found]
        if _too_much(messages) and len(rows) > 1:
            return None
        at = np.array([at for at, _ in found], np.int64)
        return {
            "error_code": _spread([fault.code for _, fault in found], at, len(rows), pa.string()),
            "error_message": _spread(messages, at, len(rows), pa.large_string()),
            "error_origin": _spread([fault.origin for _, fault in found], at, len(rows), pa.string()),
        }


def _too_much(*lists: Sequence[str]) -> bool:
    return sum(sum(map(len, texts)) for texts in lists) > BATCH_BYTES


def _spread(texts: list[str], at: NDArray[Any], count: int, type_: pa.DataType) -> pa.Array:
    """A column of `count` rows that has `texts` where `at` says."""
    if not texts:
        return pa.nulls(count, type_)
    places, missing = np.zeros(count, np.int64), np.ones(count, np.bool_)
    places[at], missing[at] = np.arange(len(texts)), False
    return pa.array(texts, type_).take(pa.array(places, mask=missing))


class _File:
    """An Arrow IPC file with rows of `rows` from `first` on."""

    def __init__(self, layer: str, rows: _Rows, first: int) -> None:
        about = {"format": schema.FORMAT, "version": schema.VERSION, "layer": layer, "first": first}
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(
            self._sink,
            SCHEMA.with_metadata({schema.PART: write_json(about)}),
            options=pa.ipc.IpcWriteOptions(
                compression=pa.Codec("zstd", 1) if rows.count > WORTHWHILE else None, use_threads=False
            ),
        )
        self._rows = rows
        self._first = first
        self._shapes = rows.shapes(first, FILE)
        self._definitions = pa.array(
            [write_shape(rows.columns.shapes[place]) for place in self._shapes.tolist()], pa.large_string()
        )

    def fill(self) -> int:
        """Write as many rows as there are, or as a file has. Returns where the next file begins."""
        at = self._first
        while at < self._rows.count and at - self._first < FILE and self._sink.tell() < FILE_BYTES:
            batch = self._rows.batch(at, self._first + FILE - at, self._shapes, self._definitions)
            self._writer.write_batch(batch)
            at += batch.num_rows
        return at

    def note(self, key: bytes, value: Any) -> None:
        """Write a batch without rows that says `value`."""
        empty = self._rows.made({"id": []}, 0, self._shapes, self._definitions)
        self._writer.write_batch(empty, custom_metadata={key: write_json(value)})

    def close(self) -> bytes:
        self._writer.close()
        data: bytes = self._sink.getvalue().to_pybytes()
        return data
