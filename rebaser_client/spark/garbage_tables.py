"""The tables that garbage collection compares: the blobs that are stored, and the messages that refer to them.

These tables cover a whole installation. One Spark task lists the blobs. For the references, one task reads dead letters
and queued requests, and each other task reads a range of the log; the last range extends to the end of the log.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from rebaser_client.garbage import Reference
from rebaser_client.spark.blocking import BlockingLogs
from rebaser_client.spark.logs import Logs
from rebaser_client.spark.options import SourceOptions
from rebaser_core.blobs.garbage import StoredBlob

BLOBS = "address STRING, size BIGINT, stored_at TIMESTAMP, version STRING, trashed BOOLEAN"
REFERENCES = "address STRING, message STRING, workspace STRING, change_set STRING, sequence BIGINT"

_PER_BATCH = 10_000


@dataclass(frozen=True)
class ReferencePartition(InputPartition):  # type: ignore[misc] # PySpark is untyped here
    """The messages that one Spark task reads.

    If `queued` is true, these are the queued requests and the dead letters. Otherwise, these are the commits after log
    sequence `after` up to `until`; None means the end of the log.
    """

    queued: bool = False
    after: int = 0
    until: int | None = None


def blob_partitions(_: BlockingLogs, __: SourceOptions) -> list[InputPartition]:
    return [InputPartition(0)]


def reference_partitions(logs: BlockingLogs, options: SourceOptions) -> list[InputPartition]:
    """Return the partitions of the messages that the option `messages` selects."""
    queued = [ReferencePartition(queued=True)] if options.messages != "commits" else []
    if options.messages == "queued":
        return queued
    after, count = options.start or 0, max(options.partitions - len(queued), 1)
    step = max((logs.call(Logs.newest) - after) // count, 1)
    ends = [after + number * step for number in range(count)]
    ranges = [ReferencePartition(after=first, until=last) for first, last in pairwise(ends)]
    return [*queued, *ranges, ReferencePartition(after=ends[-1])]


def blob_batches(logs: BlockingLogs, _: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows for the stored blobs, with the columns `BLOBS`."""
    found = logs.call(Logs.stored)
    for start in range(0, len(found), _PER_BATCH):
        yield _blob_batch(found[start : start + _PER_BATCH], schema)


def reference_batches(logs: BlockingLogs, partition: ReferencePartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows for the references to blobs, with the columns `REFERENCES`: one row for each address that the
    messages of the partition contain."""
    if partition.queued:
        found = logs.call(Logs.queued_references)
    else:
        found = logs.call(Logs.commit_references, partition.after, partition.until)
    for start in range(0, len(found), _PER_BATCH):
        yield _reference_batch(found[start : start + _PER_BATCH], schema)


def _blob_batch(blobs: list[StoredBlob], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[list[object]] = [
        [blob.address for blob in blobs],
        [blob.size for blob in blobs],
        [blob.stored_ms * 1000 for blob in blobs],
        [blob.version for blob in blobs],
        [blob.trashed for blob in blobs],
    ]
    return _batch(columns, schema)


def _reference_batch(references: list[Reference], schema: pa.Schema) -> pa.RecordBatch:
    names = [reference.subject.split(".")[-2:] for reference in references]
    columns: list[list[object]] = [
        [reference.address for reference in references],
        [reference.message for reference in references],
        [name[0] for name in names],
        [name[-1] for name in names],
        [reference.sequence for reference in references],
    ]
    return _batch(columns, schema)


def _batch(columns: list[list[object]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
