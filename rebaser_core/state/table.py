"""Exports the values of columns as an Arrow table, without an object for each value.

Invariant: the column `json` contains every value exactly. The columns `number` and `text` repeat the value in types
that programs can compute with.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rebaser_core.state.columns import Columns
from rebaser_core.state.kinds import ERROR, FALSE, FLOAT, INT, NULL, OTHER, STALE, STATES, TRUE, UNSET, is_number
from rebaser_core.values import Json

COLUMNS: Final = ("id", "state", "kind", "number", "text", "json", "error_code", "error_message", "error_origin")
SCHEMA: Final = pa.schema([(name, pa.float64() if name == "number" else pa.string()) for name in COLUMNS])

# The kinds of a value, as codes and as names. Those of texts, lists and maps follow the codes of `kinds`.
_TEXT, _ARRAY, _OBJECT, _NOTHING = OTHER, OTHER + 1, OTHER + 2, OTHER + 3
_KINDS = pa.array(["null", "boolean", "boolean", "integer", "float", "text", "array", "object", None], pa.string())
_STATES = pa.array([state.value for state in STATES], pa.string())
_CONSTANTS = {NULL: "null", FALSE: "false", TRUE: "true"}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def table_of(columns: Columns, stale: Iterable[str]) -> pa.Table:
    """Return a table with a row for each value in `columns`, in the order of their rows. `stale` are the ids of the
    derived values that are not up to date."""
    rows = columns.rows()
    states = columns.state[rows]
    place = np.full(columns.count, -1, np.int64)
    place[rows] = np.arange(len(rows))
    states[place[[columns.index[id_] for id_ in stale]]] = STALE
    others = {int(place[row]): value for row, value in columns.other.items() if place[row] >= 0}
    kinds = columns.kind[rows]
    kinds[[at for at, value in others.items() if type(value) is list]] = _ARRAY
    kinds[[at for at, value in others.items() if type(value) is dict]] = _OBJECT
    kinds[(states == ERROR) | (states == UNSET)] = _NOTHING
    texts: NDArray[Any] = np.full(len(rows), None)
    for at, value in others.items():
        if kinds[at] == _TEXT:
            texts[at] = value
    bits = columns.bits[rows]
    ids = columns.ids if len(rows) == len(columns.ids) else [columns.ids[row] for row in rows.tolist()]
    faults = [columns.faults[row] for row in rows[states == ERROR].tolist()]
    failed = np.flatnonzero(states == ERROR)
    arrays = [
        pa.array(ids, pa.string()),
        _STATES.take(pa.array(states)),
        _KINDS.take(pa.array(kinds)),
        pa.array(np.where(kinds == INT, bits, bits.view(np.float64)), pa.float64(), mask=~is_number(kinds)),
        pa.array(texts, pa.string()),
        pa.array(_json(kinds, bits, others), pa.string()),
        _spread([fault.code for fault in faults], failed, len(rows)),
        _spread([fault.message for fault in faults], failed, len(rows)),
        _spread([fault.origin for fault in faults], failed, len(rows)),
    ]
    return pa.Table.from_arrays(
        [array.cast(pa.string()) if at == 0 else array for at, array in enumerate(arrays)], schema=SCHEMA
    )


def _json(kinds: NDArray[Any], bits: NDArray[np.int64], others: dict[int, Json]) -> NDArray[Any]:
    """Return each value as JSON; None for values that are errors or unset."""
    cells: NDArray[Any] = np.full(len(kinds), None)
    for kind, text in _CONSTANTS.items():
        cells[kinds == kind] = text
    for kind, numbers, write in ((INT, bits, int.__repr__), (FLOAT, bits.view(np.float64), float.__repr__)):
        cells[kinds == kind] = list(map(write, numbers[kinds == kind].tolist()))
    for at, value in others.items():
        if kinds[at] != _NOTHING:
            cells[at] = _encode(value)
    return cells


def _spread(cells: list[str], places: NDArray[Any], count: int) -> pa.Array:
    """Return an array of `count` cells, with `cells` at `places` and nulls elsewhere."""
    if not cells:
        return pa.nulls(count, pa.string())
    spread: NDArray[Any] = np.full(count, None)
    spread[places] = cells
    return pa.array(spread, pa.string())
