"""Arrow columns of values, for tables in Spark and in notebooks, and Arrow batches of rows.

Invariant: the column `json` contains every value exactly. The columns `number` and `text` repeat the value in types
that programs can compute with.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from rebaser_core.state.table import SCHEMA
from rebaser_core.values import Fault, Json, State, Value

ROWS_PER_BATCH = 10_000
NO_CONTENT: tuple[None, None, None, None] = (None, None, None, None)
NO_FAULT: tuple[None, None, None] = (None, None, None)
_KINDS = {type(None): "null", bool: "boolean", int: "integer", float: "float", str: "text", list: "array"}


def values_table(values: Mapping[str, Value]) -> pa.Table:
    """Return a table with a row for each of `values`, in their order.

    Its columns are `id`, `state`, and those of `value_cells`.
    """
    rows = ((id_, value.state.value, *value_cells(value)) for id_, value in values.items())
    return pa.Table.from_batches(batches(rows, SCHEMA, ROWS_PER_BATCH), SCHEMA)


def value_cells(value: Value) -> tuple[Any, ...]:
    """Return the cells of a value for the columns `kind`, `number`, `text`, `json`, `error_code`, `error_message` and
    `error_origin`. The first four are None for a value that is an error or unset."""
    nothing = value.state in (State.ERROR, State.UNSET)
    return *(NO_CONTENT if nothing else content(value.value)), *fault_cells(value.error)


def content(value: Json) -> tuple[str, float | None, str | None, str]:
    """Return the cells of a JSON value for the columns `kind`, `number`, `text` and `json`."""
    kind = _KINDS.get(type(value), "object")
    number = float(value) if kind in ("integer", "float") else None  # type: ignore[arg-type] # it is a number
    text = value if isinstance(value, str) else None
    return kind, number, text, json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fault_cells(fault: Fault | None) -> tuple[str | None, str | None, str | None]:
    """Return the cells of a fault for the columns `error_code`, `error_message` and `error_origin`; None in each if
    there is no fault."""
    return NO_FAULT if fault is None else (fault.code, fault.message, fault.origin)


def batches(rows: Iterator[tuple[Any, ...]], schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    """Yield `rows` as Arrow batches of at most `size` rows. In `rows`, a struct is a tuple of its fields, or None."""
    convert = [_converter(field.type) for field in schema]
    while batch := list(islice(rows, size)):
        arrays = []
        for field, struct, column in zip(schema, convert, zip(*batch, strict=True), strict=True):
            cells: Sequence[Any] = column if struct is None else [struct(cell) for cell in column]
            arrays.append(pa.array(cells, field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _converter(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts a struct, or each struct in a list, into a dictionary; None for other types."""
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        return lambda cells: None if cells is None else dict(zip(names, cells, strict=True))
    if pa.types.is_list(type_) and (one := _converter(type_.value_type)):
        return lambda many: None if many is None else [one(each) for each in many]
    return None
