"""The columns of the tables of values and commits, and the Arrow batches with their rows.

`rebaser_client.arrow` fills the columns of values.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from rebaser_client.arrow import NO_CONTENT, NO_FAULT, ROWS_PER_BATCH, batches, content, fault_cells, value_cells
from rebaser_core.commit import Authorship, Commit, Computed
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set, Update

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

_COMMITS_PER_BATCH = 100  # few, because a commit may have many changes
_BEFORE_CELLS = 7  # the number of cells of a change that precede the cells of its fault


def value_batches(key: ChangeSetKey, state: ChangeSetState, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows for the values of `key`, with the columns `VALUES`. `state` is the state of `key`."""
    rows = (
        (
            key.workspace,
            key.change_set,
            state.last,
            id_,
            value.state.value,
            *value_cells(value),
            state.cells.edited(id_) or None,
        )
        for id_, value in state.values().items()
    )
    yield from batches(rows, schema, ROWS_PER_BATCH)


def commit_batches(commits: list[tuple[ChangeSetKey, Commit]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows for commits, with the columns `COMMITS`.

    The commits must contain their deltas and the definitions that they replaced.
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


def _change(change: Update | Computed) -> tuple[Any, ...]:
    """Return the cells of a change: its operation, id, function, content and fault."""
    if isinstance(change, Computed):
        cells = NO_CONTENT if change.fault else content(change.value)
        return ("computed", change.id, None, *cells, *fault_cells(change.fault))
    cells = content(change.value) if isinstance(change, Set) else NO_CONTENT
    function = change.function if isinstance(change, Derive) else None
    return (type(change).__name__.lower(), change.id, function, *cells, *NO_FAULT)
