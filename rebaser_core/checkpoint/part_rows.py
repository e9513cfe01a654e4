"""Copies the rows of a checkpoint's part from the columns of a state, and converts them to Arrow batches.

Invariant: later edits of the change set do not change the copied rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_core import thresholds
from rebaser_core.checkpoint import schema
from rebaser_core.checkpoint.schema import write_json
from rebaser_core.state.change_set import View
from rebaser_core.state.kinds import ERROR, FALSE, FLOAT, INT, OTHER, TRUE


class PartRows:
    """The rows of a part of a checkpoint.

    They are, in this order: the rows of `view` with the numbers `rows`, a row for each removed id in `gone`, and a row
    for each row number in `named`, whose id is needed because a definition refers to it. `count` is the number of all
    these rows. `known` contains the templates of the columns. `version` is the version of the format. Inputs are not
    copied, because the memory that contains them is never overwritten.
    """

    def __init__(
        self, view: View, rows: NDArray[Any], gone: list[str], named: NDArray[Any], *, version: int = schema.VERSION
    ) -> None:
        columns = view.columns
        self.version = version
        self._gone, self._named = len(rows), len(rows) + len(gone)  # the positions where `gone` and `named` begin
        self.count = self._named + len(named)
        self.known, self._refs = columns.templates, columns.refs
        self._state, self._kind, self._bits = columns.state[rows], columns.kind[rows], columns.bits[rows]
        self._template, self._first_input = columns.template[rows], columns.first_input[rows]
        self._edited = columns.edited[rows]
        self._names, self._name_at = _names(columns.ids, rows, gone, named)
        self._places = np.full(columns.count, -1, np.int32)  # maps a row of the columns to its position in the part
        self._places[rows] = np.arange(len(rows), dtype=np.int32)
        self._places[named] = np.arange(self._named, self.count, dtype=np.int32)
        self._other_at = np.flatnonzero(self._kind == OTHER)
        self._others = _taken(columns.other, rows[self._other_at])
        self._fault_at = np.flatnonzero(self._state == ERROR)
        self._faults = _taken(columns.faults, rows[self._fault_at])
        self._roots = self._root_of(view) if view.roots else None

    def _root_of(self, view: View) -> NDArray[np.int64]:
        """Return the column `root`, with 0 for each row whose value is not a root.

        If the part has fewer rows than there are roots, the loop is over the rows; otherwise, it is over the roots.
        """
        index, roots = view.columns.index, view.roots
        if len(roots) > self.count:
            return np.fromiter((roots.get(id_, 0) for id_ in self._ids(0, self.count)), np.int64, self.count)
        rows = np.fromiter((index.get(id_, -1) for id_ in roots), np.int64, len(roots))
        sequences = np.fromiter(roots.values(), np.int64, len(roots))
        rows, sequences = rows[rows >= 0], sequences[rows >= 0]  # an id that was removed may have no row
        places = self._places[rows]
        column = np.zeros(self.count, np.int64)
        column[places[places >= 0]] = sequences[places >= 0]
        column[self._gone : self._named] = [roots.get(id_, 0) for id_ in self._ids(self._gone, self._named)]
        return column

    def _ids(self, at: int, end: int) -> list[str]:
        return list(map(self._names.__getitem__, self._name_at[at:end].tolist()))

    def templates(self, at: int, count: int) -> NDArray[Any]:
        """Return the distinct template indexes of the `count` rows that begin at position `at`."""
        found = np.unique(self._template[at : at + count])
        return found[found >= 0]

    def batch(self, at: int, most: int, templates: NDArray[Any], definitions: pa.Array) -> pa.RecordBatch:
        """Return a batch of at most `most` rows, beginning at position `at`. `definitions` are the JSON texts of the
        templates with the indexes `templates`."""
        end = min(
            at + most,
            at + thresholds.now.batch_rows,
            next(border for border in (self._gone, self._named, self.count) if border > at),
        )
        columns: dict[str, Any] = {}
        if at < self._gone:
            while (cells := self._cells(at, end)) is None:
                end = at + (end - at) // 2
            columns = cells
        elif at < self._named:
            columns = {"state": np.zeros(end - at, np.int8)}
        columns["id"] = self._ids(at, end)
        if self._roots is not None:
            columns["root"] = pa.array(self._roots[at:end], mask=self._roots[at:end] == 0)
        return make_batch(columns, end - at, templates, definitions, self.version)

    def _cells(self, at: int, end: int) -> dict[str, Any] | None:
        """Return the columns of the rows from position `at` up to `end`, or None if these rows are too large for one
        batch."""
        template, kind, bits = self._template[at:end], self._kind[at:end], self._bits[at:end]
        defined = template >= 0
        places, _, counts = self.known.input_places(template[defined], self._first_input[at:end][defined])
        if len(places) > thresholds.now.batch_inputs and end - at > 1:
            return None
        others = self._texts(at, end)
        faults = self._errors(at, end)
        if others is None or faults is None:
            return None
        offsets = np.zeros(end - at + 1, np.int32)
        offsets[1:][defined] = counts
        inputs = pa.ListArray.from_arrays(
            pa.array(np.cumsum(offsets, dtype=np.int32)),
            pa.array(self._places[self._refs[places]]),
            mask=pa.array(~defined),
        )
        return {
            "state": self._state[at:end],
            "integer": pa.array(np.where(kind == INT, bits, 0), mask=kind != INT),
            "double": pa.array(np.where(kind == FLOAT, bits, 0).view(np.float64), mask=kind != FLOAT),
            "boolean": pa.array(kind == TRUE, mask=(kind != TRUE) & (kind != FALSE)),
            "definition": template,
            "inputs": inputs,
            "edited": pa.array(self._edited[at:end], mask=self._edited[at:end] == 0),
            **others,
            **faults,
        }

    def _texts(self, at: int, end: int) -> dict[str, Any] | None:
        first, last = np.searchsorted(self._other_at, (at, end)).tolist()
        places, values = self._other_at[first:last] - at, self._others[first:last]
        is_text = np.fromiter((type(value) is str for value in values), np.bool_, len(values))
        texts = [value for value in values if type(value) is str]
        jsons = [write_json(value) for value in values if type(value) is not str]
        if _too_much(texts, jsons) and end - at > 1:
            return None
        return {
            "text": _spread(texts, places[is_text], end - at, pa.large_string()),
            "json": _spread(jsons, places[~is_text], end - at, pa.large_string()),
        }

    def _errors(self, at: int, end: int) -> dict[str, Any] | None:
        first, last = np.searchsorted(self._fault_at, (at, end)).tolist()
        places, faults, count = self._fault_at[first:last] - at, self._faults[first:last], end - at
        messages = [fault.message for fault in faults]
        if _too_much(messages) and count > 1:
            return None
        return {
            "error_code": _spread([fault.code for fault in faults], places, count, pa.string()),
            "error_message": _spread(messages, places, count, pa.large_string()),
            "error_origin": _spread([fault.origin for fault in faults], places, count, pa.string()),
        }


def make_batch(
    columns: dict[str, Any], count: int, templates: NDArray[Any], definitions: pa.Array, version: int
) -> pa.RecordBatch:
    """Return an Arrow batch with `columns`, in which missing columns are null. Columns that do not exist in `version`
    of the format are omitted."""
    fields = schema.SCHEMAS[version]
    template = columns.pop("definition", np.full(count, -1))
    columns["definition"] = pa.DictionaryArray.from_arrays(
        pa.array(np.searchsorted(templates, template).astype(np.int32), mask=template < 0), definitions
    )
    state = columns.pop("state", None)
    columns["state"] = pa.DictionaryArray.from_arrays(
        pa.nulls(count, pa.int8()) if state is None else pa.array(state.astype(np.int8)), schema.STATES
    )
    columns["id"] = pa.array(columns["id"], pa.string())
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


def _names(
    ids: list[str], rows: NDArray[Any], gone: list[str], named: NDArray[Any]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return a list that contains the ids of a part, and the position of each row's id in this list.

    The rows of the part are `rows`, then the rows for `gone`, then `named`. If the part has many rows and `named` is
    empty, the list is a copy of all of `ids` and `gone`, because copying all ids at once takes as long as copying a
    tenth of them one by one.
    """
    if len(named) or thresholds.now.copy_id_list_divisor * len(rows) < len(ids):
        names = [*_taken(ids, rows), *gone, *_taken(ids, named)]
        return names, np.arange(len(names))
    names, step = [], 100 * thresholds.now.copy_step_objects
    for start in range(0, len(ids), step):
        names += ids[start : start + step]
    return names + gone, np.concatenate((rows, len(ids) + np.arange(len(gone))))


def _taken(items: Sequence[Any] | Mapping[int, Any], rows: NDArray[Any]) -> list[Any]:
    """Return the elements of `items` that have the indexes `rows`."""
    taken: list[Any] = []
    step = thresholds.now.copy_step_objects
    for start in range(0, len(rows), step):
        taken += map(items.__getitem__, rows[start : start + step].tolist())
    return taken


def _too_much(*lists: Sequence[str]) -> bool:
    return sum(sum(map(len, texts)) for texts in lists) > thresholds.now.batch_bytes


def _spread(texts: list[str], at: NDArray[Any], count: int, type_: pa.DataType) -> pa.Array:
    """Return a column of `count` rows with `texts` at the positions `at`, and null elsewhere."""
    if not texts:
        return pa.nulls(count, type_)
    places, missing = np.zeros(count, np.int64), np.ones(count, np.bool_)
    places[at], missing[at] = np.arange(len(texts)), False
    return pa.array(texts, type_).take(pa.array(places, mask=missing))
