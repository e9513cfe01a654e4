"""The columns of the tables of values and commits, and the Arrow batches with their rows.

Invariant: the column `json` contains every value exactly. The columns `number` and `text` repeat the value in a type
with which Spark can compute.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from rebaser_core.commit import Authorship, Commit, Computed
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set, Update
from rebaser_core.values import Fault, Json

CONTENT = "kind STRING, number DOUBLE, text STRING, json STRING"
_FAULT = "error_code STRING, error_message STRING, error_origin STRING"

VALUES = f"workspace STRING, change_set STRING, sequence BIGINT, id STRING, state STRING, {CONTENT}, {_FAULT}"
VALUES += ", edited BIGINT"

COMMITS = (
    "workspace STRING, change_set STRING, sequence BIGINT, previous BIGINT, kind STRING, at TIMESTAMP, owner STRING, "
    "covers BIGINT, requests ARRAY<STRUCT<sequence: BIGINT, id: STRING, outcome: STRING, performed: BIGINT, "
    "code: STRING, message: STRING, author: STRING, author_message: STRING>>, "
    f"changes ARRAY<STRUCT<op: STRING, id: STRING, function: STRING, {CONTENT}, {_FAULT}>>, "
    f"before ARRAY<STRUCT<op: STRING, id: STRING, function: STRING, {CONTENT}>>, "
    "from_change_set STRING, from_sequence BIGINT, reverts_first BIGINT, reverts_last BIGINT, protected BOOLEAN, "
    "status STRING"
)

_VALUES_PER_BATCH = 10_000
_COMMITS_PER_BATCH = 100  # few, because a commit may have many changes
_KINDS = {type(None): "null", bool: "boolean", int: "integer", float: "float", str: "text", list: "array"}
NO_CONTENT: tuple[None, None, None, None] = (None, None, None, None)
_BEFORE_CELLS = 7  # the number of cells of a change that precede the cells of its fault
_NO_FAULT: tuple[None, None, None] = (None, None, None)


def value_batches(key: ChangeSetKey, state: ChangeSetState, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows for the values of `key`, with the columns `VALUES`. `state` is the state of `key`."""
    rows = (
        (
            key.workspace,
            key.change_set,
            state.last,
            id_,
            value.state.value,
            *(NO_CONTENT if value.state in ("error", "unset") else content(value.value)),
            *_fault(value.error),
            state.cells.edited(id_) or None,
        )
        for id_, value in state.values().items()
    )
    yield from batches(rows, schema, _VALUES_PER_BATCH)


def commit_batches(commits: list[tuple[ChangeSetKey, Commit]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows for commits, with the columns `COMMITS`.

    The commits contain their deltas and the definitions that they replaced.
    """
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
            _requests(commit),
            [_change(change) for change in commit.delta],
            None if commit.before is None else [_change(change)[:_BEFORE_CELLS] for change in commit.before],
            *_history(commit),
        )
        for key, commit in commits
    )
    yield from batches(rows, schema, _COMMITS_PER_BATCH)


def _requests(commit: Commit) -> list[tuple[Any, ...]]:
    authors = commit.authors or (Authorship(),) * len(commit.requests)
    return [
        (
            decision.sequence,
            decision.request_id,
            decision.outcome.value,
            decision.performed,
            decision.code,
            decision.message,
            author.author,
            author.message,
        )
        for decision, author in zip(commit.requests, authors, strict=True)
    ]


def _history(commit: Commit) -> tuple[Any, ...]:
    """Return the cells `from_change_set` to `status`: the source of the commit, the commits that it reverts, and the
    protection and status that it sets."""
    source, reverts, marking = commit.origin or commit.source, commit.reverts, commit.marking
    status = commit.status if marking is None else marking.status
    return (
        *((None, None) if source is None else (source.change_set, source.sequence)),
        *((None, None) if reverts is None else (reverts.first, reverts.last)),
        None if marking is None else marking.protected,
        None if status is None else status.value,
    )


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


def _change(change: Update | Computed) -> tuple[Any, ...]:
    """Return the cells of a change: its operation, id, function, content and fault."""
    if isinstance(change, Computed):
        cells = NO_CONTENT if change.fault else content(change.value)
        return ("computed", change.id, None, *cells, *_fault(change.fault))
    cells = content(change.value) if isinstance(change, Set) else NO_CONTENT
    function = change.function if isinstance(change, Derive) else None
    return (type(change).__name__.lower(), change.id, function, *cells, *_NO_FAULT)


def content(value: Json) -> tuple[str, float | None, str | None, str]:
    """Return the cells of a value for the columns `CONTENT`."""
    kind = _KINDS.get(type(value), "object")
    number = float(value) if kind in ("integer", "float") else None  # type: ignore[arg-type] # it is a number
    text = value if isinstance(value, str) else None
    return kind, number, text, json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _fault(fault: Fault | None) -> tuple[str | None, str | None, str | None]:
    return _NO_FAULT if fault is None else (fault.code, fault.message, fault.origin)
