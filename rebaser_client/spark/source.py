"""The data source that Spark calls. Spark plans a read in one process, and reads the rows in other processes.

Invariant: an error is raised without its cause, as one line that says what to do, because Spark shows whole tracebacks.
"""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rebaser_client.spark.blocking import BlockingLogs
from rebaser_client.spark.logs import Logs
from rebaser_client.spark.options import SourceOptions
from rebaser_client.spark.registry import TABLES, LogPartition, read_partition
from rebaser_core.errors import ConfigError
from rebaser_core.ids import ChangeSetKey


class RebaserDataSource(DataSource):  # type: ignore[misc] # PySpark is untyped here
    """Reads change sets with `spark.read.format("rebaser")` or `spark.readStream.format("rebaser")`.

    Register it first: `spark.dataSource.register(RebaserDataSource)`. All machines of Spark need this package and a
    connection to NATS.

    Options:

    - `workspace`: required, except for the tables `blobs` and `references`, which cover all workspaces.
    - `changeSet`: one change set, or several change sets separated by commas (default: all in the workspace).
    - `table`: `values` (default), `commits`, `change_sets`, `changes`, `conflicts`, `blobs` or `references`.
    - `nats`: the NATS URL.
    - `at`, for the tables `values`, `change_sets`, `changes` and `conflicts`: the position at which the table is read,
      a log sequence (`1234`), an age (`2h`) or a time (`2026-01-31T12:00Z`); default: the current state. All change
      sets are read at the same position. Change sets that did not exist at that position have no rows.
    - `from`, `to`, for commits: read only the commits after position `from`, up to position `to` (tables only).
    - `start`, for commits and references: `all` (default), `new` (streams only), or the log sequence after which to
      start.
    - `messages`, for references: `all` (default), `commits`, or `queued` (requests and dead letters).
    - `partitions`: the maximum number of partitions (default 32). A change set is never split.
    - `failOnDataLoss`: whether reading fails if commits after `start` or `from`, or commits that `at` needs, were
      purged (default true). If false, such commits or change sets are left out.
    - `credentials` or `nkey` (files on Spark's machines), `token`, or `user` and `password`: the credentials for NATS.
      In place of `token` or `password`, `tokenFile` or `passwordFile` (on Spark's machines).
    - `tlsCa`, `tlsCert`, `tlsKey` (files on Spark's machines), `tlsHostname`, `tlsFirst` (true or false), and `domain`
      (of JetStream): the same values as in the servers' settings.
    - `prefix`, `blobs`, `inboxPrefix`: the same values as in the servers' settings.

    All tables that are about change sets have the columns `workspace`, `change_set` and `sequence`. In the list below,
    "content" stands for the columns `kind` (null, boolean, integer, float, text, array, object), `number` (a double),
    `text`, and `json` (the exact value).

    Table `values`, with a row for each value:

    - `sequence`: the log sequence as of which the values of the change set were read.
    - `id`, content, and `state` (ok, stale, error, unset).
    - `error_code`, `error_message`, `error_origin`: null unless the value is an error.
    - `edited`: the log sequence of the commit that last defined the value; null if it is unknown.

    Table `commits`, with a row for each commit. The offsets of a stream are log sequences.

    - `sequence`: the log sequence of the commit. `previous`: the log sequence of the commit before it. `kind`, `at`
      (time), `owner` (server), `covers`: the same as in the log.
    - `requests`: the requests that the commit decided, with `sequence`, `id`, `outcome`, `performed`, `code` and
      `message`. `author` and `author_message` are the texts that the sender of the request gave.
    - `changes`: the changes that the commit made, with `op` (set, derive, unset, remove or computed), `id`, `function`
      (of a derive), content, and the error columns of `values`.
    - `before`: the definitions that the commit replaced, in the form of `changes` but without errors; null if they are
      unknown.
    - `from_change_set`, `from_sequence`: the parent from which the commit created the change set, the branch that the
      commit applied, or the target whose edits the commit added.
    - `reverts_first`, `reverts_last`: the first and the last of the commits that this commit reverts.
    - `protected`, `status`: the protection and the status that the commit gives the change set.

    Table `change_sets`, with a row for each change set:

    - `sequence`, `at`: the log sequence of the newest commit, and the time when that commit was stored.
    - `status` (open, applied, abandoned, kept, deleted), `protected`.
    - `origin`, `origin_sequence`: the parent from which the change set was created, and the log sequence as of which it
      was created; null if it has no parent.
    - `target`, `base_sequence`: the change set to which this change set can be applied, and the log sequence up to
      which this change set contains the edits of the target; null if it has no target.
    - `behind`: whether the target was edited after that log sequence.
    - `changes`, `conflicts`: the number of changes since the base, and of conflicts with the target.

    Table `changes`, with a row for each value whose definition differs between a branch and its base:

    - `target`, `base_sequence`: the same as in `change_sets`. `target_sequence`: the log sequence of the target as of
      which `theirs` was read.
    - `id`; `base`, `ours`, `theirs`: the definitions at the base, in the branch and in the target, with `op`,
      `function`, `inputs` and `params` (as JSON), and content; null if the value does not exist there.
    - `moved`: whether the target also changed the definition after the base. `landed`: whether the target already has
      the definition of the branch.

    Table `conflicts`, with a row for each value in conflict: `target`, `base_sequence` and `id`; `base` (the definition
    that both sides replaced), `ours` (the definition in the branch) and `theirs` (the definition in the target), in the
    form that they have in `changes`.

    Table `blobs`, with a row for each blob: `address`, `size` (bytes), `stored_at` (when the blob was last stored),
    `version` (changes if the blob is stored again), and `trashed` (whether garbage collection has moved the blob to the
    trash).

    Table `references`, with the blobs that stored messages need: `address`; `message` (commit, request or dead_letter);
    `workspace`, `change_set` and `sequence` of the message. An address has at least one row, but not always a row for
    each message. To find blobs that no message needs, read all of `blobs` first, and `references` afterwards.
    """

    @classmethod
    def name(cls) -> str:
        return "rebaser"

    def schema(self) -> str:
        return TABLES[self._read_options().table].columns

    def reader(self, schema: StructType) -> "BatchReader":
        options = self._read_options()
        if options.start is None:
            raise ConfigError('the option "start" must be "all" or a log sequence: "new" is only for streams')
        return BatchReader(options, to_arrow_schema(schema, timezone="UTC"))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        options = self._read_options()
        if options.table != "commits":
            raise ConfigError('only the table of commits can be streamed: set .option("table", "commits")')
        if options.to is not None:
            raise ConfigError("a stream of commits has no end: remove the option 'to', which is only for tables")
        return StreamReader(options, to_arrow_schema(schema, timezone="UTC"))

    def _read_options(self) -> SourceOptions:
        return SourceOptions.read(self.options)


class BatchReader(DataSourceReader):  # type: ignore[misc] # PySpark is untyped here
    """Reads a table. If the options set a position, it is fixed when Spark plans the read; otherwise, each Spark task
    reads the current state."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with closing(BlockingLogs(options)) as logs:
            if (plan := TABLES[options.table].partitions) is not None:
                return plan(logs, options)
            at, after, until = (logs.call(Logs.cut, position) for position in (options.at, options.from_, options.to))
            if not TABLES[options.table].split:
                keys = options.keys()
                return [LogPartition(None if keys is None else tuple(keys), at=at)]
            last = logs.call(Logs.last)
            after, until = options.start or 0 if after is None else after, last if until is None else min(until, last)
            # If there are no change sets, return one empty partition, because Spark would replace an empty list with a
            # partition that `read` cannot handle.
            return _partitions(logs.call(Logs.keys), options, after, until, at) or [LogPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition, self._schema)


class StreamReader(DataSourceStreamReader):  # type: ignore[misc] # PySpark is untyped here
    """Streams commits. An offset has the form `{"sequence": N}`, where N is the last log sequence that was read."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._logs: BlockingLogs | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        if self._options.from_ is not None:
            return {"sequence": self._connected().call(Logs.cut, self._options.from_) or 0}
        return {"sequence": self._last() if self._options.start is None else self._options.start}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's
        return {"sequence": max(start["sequence"], self._last())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[LogPartition]:
        """Return a single partition if the stream covers a whole workspace, to keep the order of its commits.

        If the options select change sets, distribute these change sets over partitions as for a table.
        """
        after, until = start["sequence"], end["sequence"]
        if after >= until:
            return []
        keys = self._options.keys()
        return [LogPartition(None, after, until)] if keys is None else _partitions(keys, self._options, after, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition, self._schema)

    def stop(self) -> None:
        if self._logs is not None:
            self._logs.close()
            self._logs = None

    def _last(self) -> int:
        """Return the log sequence of the newest commit; 0 if there is none."""
        return self._connected().call(Logs.last)

    def _connected(self) -> BlockingLogs:
        """Return a connection that stays open, because Spark asks for the newest log sequence many times a second."""
        if self._logs is None:
            self._logs = BlockingLogs(self._options)
        return self._logs


def _partitions(
    keys: list[ChangeSetKey], options: SourceOptions, after: int, until: int, at: int | None = None
) -> list[LogPartition]:
    """Distribute `keys` over at most as many partitions as `options` allow."""
    count = min(options.partitions, len(keys))
    return [LogPartition(tuple(keys[first::count]), after, until, at) for first in range(count)]
