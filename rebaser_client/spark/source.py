"""The data source that Spark calls: Spark plans in one of its processes, and reads in others.

Invariant: an error is raised without its cause, as one line that says what to do, because Spark shows whole tracebacks.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rebaser_client.spark.blocking import BlockingLogs
from rebaser_client.spark.logs import Logs
from rebaser_client.spark.options import SourceOptions
from rebaser_client.spark.tables import COMMITS, VALUES, commit_batches, value_batches
from rebaser_core.errors import ConfigError
from rebaser_core.ids import ChangeSetKey


class RebaserDataSource(DataSource):  # type: ignore[misc] # PySpark is untyped here
    """Reads change sets with `spark.read.format("rebaser")` or `spark.readStream.format("rebaser")`.

    Register it first: `spark.dataSource.register(RebaserDataSource)`. All machines of Spark need this package and a
    connection to NATS.

    Options:

    - `workspace` (required).
    - `changeSet`: one change set, or several separated by commas (default: all of the workspace).
    - `table`: `values` (default) or `commits`.
    - `nats`: the URL.
    - `start`, for commits: `all` (default), `new` (streams only), or the log sequence after which to start.
    - `partitions`: at most this many (default 32). A change set is never split.
    - `failOnDataLoss`: whether a stream, or a table of commits with `start`, fails if commits were purged before it
      read them (default true).
    - `credentials` or `token`: a NATS credentials file on Spark's machines, or a NATS token.
    - `prefix`, `blobs`, `inboxPrefix`: as for the servers.

    Columns of values: `workspace`, `change_set`, `sequence` (the log sequence as of which they are read, the same for
    all values of a change set), `id`, `state` (ok, stale, error, unset), `kind` (null, boolean, integer, float, text,
    array, object), `number` (a double), `text`, `json` (the exact value), `error_code`, `error_message`,
    `error_origin`, `edited` (the log sequence of the commit that last defined it; null if that is unknown).

    Columns of commits: `workspace`, `change_set`, `sequence`, `previous`, `kind`, `at`, `owner`, `covers`, `requests`
    (`sequence`, `id`, `outcome`, `performed`, `code`, `message`; `author` and `author_message` as claimed by its
    sender), `changes` (`op`: set, derive, unset, remove or computed; `id`; `function` of a derive; and `kind` to
    `error_origin` as for values), `before` (the definitions that the commit replaced, as `changes` without errors; null
    if they are unknown), `from_change_set` and `from_sequence` (what the change set was created from, which branch the
    commit applied, or what it took over from the target), `reverts_first` and `reverts_last` (the commits that it takes
    back), `protected` and `status` (what it marks the change set as). The offsets of a stream are log sequences.
    """

    @classmethod
    def name(cls) -> str:
        return "rebaser"

    def schema(self) -> str:
        return VALUES if self._read_options().table == "values" else COMMITS

    def reader(self, schema: StructType) -> "BatchReader":
        options = self._read_options()
        if options.start is None:
            raise ConfigError('start "new" is for streams: a table starts at "all" or after a log sequence')
        return BatchReader(options, to_arrow_schema(schema, timezone="UTC"))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        options = self._read_options()
        if options.table != "commits":
            raise ConfigError('only commits can be streamed: .option("table", "commits")')
        return StreamReader(options, to_arrow_schema(schema, timezone="UTC"))

    def _read_options(self) -> SourceOptions:
        return SourceOptions.read(self.options)


@dataclass(frozen=True)
class LogPartition(InputPartition):  # type: ignore[misc] # PySpark is untyped here
    """What one Spark task reads: the change sets `keys` (None: all of the workspace). Of commits, it reads those after
    `after` up to `until`.
    """

    keys: tuple[ChangeSetKey, ...] | None
    after: int = 0
    until: int = 0


class BatchReader(DataSourceReader):  # type: ignore[misc] # PySpark is untyped here
    """Reads values as of the time when a task reads them, or commits up to the newest at the time of planning."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[LogPartition]:
        with closing(BlockingLogs(self._options)) as logs:
            keys, last = logs.call(Logs.keys), logs.call(Logs.last)
        # Without change sets, there is one empty partition: for an empty list, Spark would add a partition of its own.
        return _partitions(keys, self._options, self._options.start or 0, last) or [LogPartition(())]

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        if self._options.table == "commits":
            yield from _commits(self._options, partition, self._schema)
            return
        with closing(BlockingLogs(self._options)) as logs:
            for key in partition.keys or ():
                state = logs.call(Logs.state, key)
                yield from value_batches(key, state, self._schema)


class StreamReader(DataSourceStreamReader):  # type: ignore[misc] # PySpark is untyped here
    """Streams commits. An offset is `{"sequence": the last log sequence that was read}`."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._logs: BlockingLogs | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"sequence": self._last() if self._options.start is None else self._options.start}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's
        return {"sequence": max(start["sequence"], self._last())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[LogPartition]:
        """Return one partition for a whole workspace, because its commits have one order; otherwise as for a table."""
        after, until = start["sequence"], end["sequence"]
        if after >= until:
            return []
        keys = self._options.keys()
        return [LogPartition(None, after, until)] if keys is None else _partitions(keys, self._options, after, until)

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        return _commits(self._options, partition, self._schema)

    def stop(self) -> None:
        if self._logs is not None:
            self._logs.close()
            self._logs = None

    def _last(self) -> int:
        """Return the newest log sequence. Spark asks many times a second, so the connection is kept."""
        if self._logs is None:
            self._logs = BlockingLogs(self._options)
        return self._logs.call(Logs.last)


def _partitions(keys: list[ChangeSetKey], options: SourceOptions, after: int, until: int) -> list[LogPartition]:
    """Distribute `keys` over at most as many partitions as `options` allow."""
    count = min(options.partitions, len(keys))
    return [LogPartition(tuple(keys[first::count]), after, until) for first in range(count)]


def _commits(options: SourceOptions, partition: LogPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with closing(BlockingLogs(options)) as logs:
        commits = logs.call(Logs.commits, partition.keys, partition.after, partition.until)
    return commit_batches(commits, schema)
