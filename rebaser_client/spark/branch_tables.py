"""The columns of the tables about branches, and the Arrow batches with their rows.

Invariant: a definition is null if the value does not exist; otherwise, the JSON in it represents the definition
exactly.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from rebaser_client.arrow import NO_CONTENT, batches, content
from rebaser_client.log.branches import BranchConflict, BranchDiff, BranchInfo
from rebaser_client.log.changes import Definition
from rebaser_client.spark.tables import CONTENT
from rebaser_core.updates import Derive, Set

_DEFINITION = "STRUCT<op: STRING, function: STRING, inputs: STRING, params: STRING, "
_DEFINITION += ", ".join(column.replace(" ", ": ") for column in CONTENT.split(", ")) + ">"
_KEY = "workspace STRING, change_set STRING, sequence BIGINT"
_SIDES = f"base {_DEFINITION}, ours {_DEFINITION}, theirs {_DEFINITION}"

CHANGE_SETS = (
    f"{_KEY}, at TIMESTAMP, status STRING, protected BOOLEAN, origin STRING, origin_sequence BIGINT, target STRING, "
    "base_sequence BIGINT, behind BOOLEAN, changes BIGINT, conflicts BIGINT"
)
CHANGES = (
    f"{_KEY}, target STRING, base_sequence BIGINT, target_sequence BIGINT, id STRING, {_SIDES}, moved BOOLEAN, "
    "landed BOOLEAN"
)
CONFLICTS = f"{_KEY}, target STRING, base_sequence BIGINT, id STRING, {_SIDES}"

_ROWS_PER_BATCH = 10_000


def change_set_batches(infos: Iterable[BranchInfo], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the table of change sets, with the columns `CHANGE_SETS`."""
    rows = (
        (
            *_key(info),
            info.time,
            info.status,
            info.protected,
            info.origin,
            info.origin_sequence if info.origin else None,
            info.target,
            info.base if info.target else None,
            info.behind if info.target else None,
            info.changes,
            info.conflicts,
        )
        for info in infos
    )
    yield from batches(rows, schema, _ROWS_PER_BATCH)


def change_batches(diff: BranchDiff, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows for the changes of a branch, with the columns `CHANGES`."""
    about = *_key(diff.info), diff.info.target, diff.info.base, diff.target_sequence
    rows = ((*about, one.id, *map(_definition, (one.base, one.ours, one.theirs)), one.moved, one.landed)
            for one in diff.changes)  # fmt: skip
    yield from batches(rows, schema, _ROWS_PER_BATCH)


def conflict_batches(
    info: BranchInfo, conflicts: Iterable[BranchConflict], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows for the conflicts of a branch, with the columns `CONFLICTS`."""
    about = *_key(info), info.target, info.base
    rows = ((*about, one.id, *map(_definition, (one.base, one.ours, one.theirs))) for one in conflicts)
    yield from batches(rows, schema, _ROWS_PER_BATCH)


def _key(info: BranchInfo) -> tuple[str, str, int]:
    return info.workspace, info.change_set, info.sequence


def _definition(definition: Definition | None) -> tuple[Any, ...] | None:
    if definition is None:
        return None
    wire = definition.to_wire()
    formula: list[str | None] = [None] * 3
    if isinstance(definition, Derive):
        formula = [definition.function, *(_dump(wire[name]) for name in ("inputs", "params"))]
    return (wire["op"], *formula, *(content(definition.value) if isinstance(definition, Set) else NO_CONTENT))


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
