"""The tables of the data source: the columns of each table, and the function with which a Spark task reads its
partition.

A new table needs an entry in `TABLES`, and an entry in `options.TABLES` with the position options that it accepts.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rebaser_client.spark.blocking import BlockingLogs
from rebaser_client.spark.branch_tables import (
    CHANGE_SETS,
    CHANGES,
    CONFLICTS,
    change_batches,
    change_set_batches,
    conflict_batches,
)
from rebaser_client.spark.garbage_tables import (
    BLOBS,
    REFERENCES,
    blob_batches,
    blob_partitions,
    reference_batches,
    reference_partitions,
)
from rebaser_client.spark.logs import Logs
from rebaser_client.spark.options import SourceOptions
from rebaser_client.spark.tables import COMMITS, VALUES, commit_batches, value_batches
from rebaser_core.ids import ChangeSetKey


@dataclass(frozen=True)
class LogPartition(InputPartition):  # type: ignore[misc] # PySpark is untyped here
    """The part of a table that one Spark task reads.

    `keys` are the change sets; None means all change sets of the workspace. For the table of commits, the task reads
    the commits after log sequence `after` up to `until`. For other tables, the task reads the state at the log sequence
    `at`; None means the state at the time of the read.
    """

    keys: tuple[ChangeSetKey, ...] | None
    after: int = 0
    until: int = 0
    at: int | None = None


Batches: TypeAlias = Iterator[pa.RecordBatch]
Read: TypeAlias = Callable[[BlockingLogs, Any, pa.Schema], Batches]
Plan: TypeAlias = Callable[[BlockingLogs, SourceOptions], list[InputPartition]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the data source. `columns` are the columns in Spark's DDL. `read` yields the rows of a partition.

    If `split` is true, the change sets are distributed over partitions. If `split` is false, a single partition reads
    all change sets that the options select. `partitions` plans the partitions of a table that is not about change sets.
    """

    columns: str
    read: Read
    split: bool = True
    partitions: Plan | None = None


def read_partition(options: SourceOptions, partition: InputPartition, schema: pa.Schema) -> Batches:
    """Yield the rows of `partition` of the table that `options` select."""
    with closing(BlockingLogs(options)) as logs:
        yield from TABLES[options.table].read(logs, partition, schema)


def _values(logs: BlockingLogs, partition: LogPartition, schema: pa.Schema) -> Batches:
    for key in partition.keys or ():
        state = logs.call(Logs.state, key, partition.at)
        if state is not None:
            yield from value_batches(key, state, schema)


def _commits(logs: BlockingLogs, partition: LogPartition, schema: pa.Schema) -> Batches:
    commits = logs.call(Logs.commits, partition.keys, partition.after, partition.until)
    yield from commit_batches(commits, schema)


def _change_sets(logs: BlockingLogs, partition: LogPartition, schema: pa.Schema) -> Batches:
    yield from change_set_batches(logs.call(Logs.change_sets, partition.keys, partition.at), schema)


def _changes(logs: BlockingLogs, partition: LogPartition, schema: pa.Schema) -> Batches:
    for key in partition.keys or ():
        diff = logs.call(Logs.changes, key, partition.at)
        if diff is not None:
            yield from change_batches(diff, schema)


def _conflicts(logs: BlockingLogs, partition: LogPartition, schema: pa.Schema) -> Batches:
    for key in partition.keys or ():
        found = logs.call(Logs.conflicts, key, partition.at)
        if found is not None:
            yield from conflict_batches(*found, schema)


TABLES: Mapping[str, Table] = {
    "values": Table(VALUES, _values),
    "commits": Table(COMMITS, _commits),
    "change_sets": Table(CHANGE_SETS, _change_sets, split=False),
    "changes": Table(CHANGES, _changes),
    "conflicts": Table(CONFLICTS, _conflicts),
    "blobs": Table(BLOBS, blob_batches, partitions=blob_partitions),
    "references": Table(REFERENCES, reference_batches, partitions=reference_partitions),
}
