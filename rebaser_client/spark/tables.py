"""The columns of the data source's tables, and rows for them.

Invariant: `json` holds every value exactly; `number` and `text` repeat it in the type one computes with.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from rebaser_core.commit import Commit, Computed
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set, Update
from rebaser_core.values import Fault, Json

_CONTENT = "kind STRING, number DOUBLE, text STRING, json STRING"
_FAULT = "error_code STRING, error_message STRING, error_origin STRING"

VALUES = f"workspace STRING, change_set STRING, sequence BIGINT, id STRING, state STRING, {_CONTENT}, {_FAULT}"

COMMITS = (
    "workspace STRING, change_set STRING, sequence BIGINT, previous BIGINT, kind STRING, at TIMESTAMP, owner STRING, "
    "covers BIGINT, requests ARRAY<STRUCT<sequence: BIGINT, id: STRING, outcome: STRING, performed: BIGINT, "
    "code: STRING, message: STRING>>, "
    f"changes ARRAY<STRUCT<op: STRING, id: STRING, function: STRING, {_CONTENT}, {_FAULT}>>"
)

_BATCH = 10_000  # values
_COMMIT_BATCH = 100  # commits, each with all its changes
_KINDS = {type(None): "null", bool: "boolean", int: "integer", float: "float", str: "text", list: "array"}
_NO_CONTENT: tuple[None, None, None, None] = (None, None, None, None)
_NO_FAULT: tuple[None, None, None] = (None, None, None)


def value_batches(key: ChangeSetKey, state: ChangeSetState, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The values of `key` as `VALUES` has them; `sequence` is the log sequence they are read at."""
    rows = (
        (
            key.workspace,
            key.change_set,
            state.last,
            id_,
            value.state.value,
            *(_NO_CONTENT if value.state in ("error", "unset") else _content(value.value)),
            *_fault(value.error),
        )
        for id_, value in state.values().items()
    )
    yield from _batches(rows, schema, _BATCH)


def commit_batches(commits: list[tuple[ChangeSetKey, Commit]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Commits, their deltas loaded, as `COMMITS` has them."""
    rows = (
        (
            key.workspace,
            key.change_set,
            commit.sequence,
            commit.previous,
            commit.kind.value,
            commit.at_ms * 1000,
            commit.owner,
            commit.sequence if commit.covers is None else commit.covers,
            [
                (one.sequence, one.request_id, one.outcome.value, one.performed, one.code, one.message)
                for one in commit.requests
            ],
            [_change(one) for one in commit.delta],
        )
        for key, commit in commits
    )
    yield from _batches(rows, schema, _COMMIT_BATCH)


def _batches(rows: Iterator[tuple[Any, ...]], schema: pa.Schema, most: int) -> Iterator[pa.RecordBatch]:
    structs = [_struct_names(field.type) for field in schema]
    while batch := list(islice(rows, most)):
        columns = []
        for field, names, column in zip(schema, structs, zip(*batch, strict=True), strict=True):
            cells = column if names is None else [[dict(zip(names, one, strict=True)) for one in c] for c in column]
            columns.append(pa.array(cells, field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _struct_names(kind: pa.DataType) -> list[str] | None:
    """The field names of a list of structs."""
    return [field.name for field in kind.value_type] if pa.types.is_list(kind) else None


def _change(change: Update | Computed) -> tuple[Any, ...]:
    """Its operation, id and function, what it holds, and why it holds nothing."""
    if isinstance(change, Computed):
        content = _NO_CONTENT if change.fault else _content(change.value)
        return ("computed", change.id, None, *content, *_fault(change.fault))
    content = _content(change.value) if isinstance(change, Set) else _NO_CONTENT
    function = change.function if isinstance(change, Derive) else None
    return (type(change).__name__.lower(), change.id, function, *content, *_NO_FAULT)


def _content(value: Json) -> tuple[str, float | None, str | None, str]:
    kind = _KINDS.get(type(value), "object")
    number = float(value) if kind in ("integer", "float") else None  # type: ignore[arg-type] # it is a number
    text = value if isinstance(value, str) else None
    return kind, number, text, json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _fault(fault: Fault | None) -> tuple[str | None, str | None, str | None]:
    return _NO_FAULT if fault is None else (fault.code, fault.message, fault.origin)
