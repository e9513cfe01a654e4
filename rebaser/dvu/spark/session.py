"""A Spark Connect session. Its calls block, so they must run in threads, never on the event loop.

Invariant: every exception that leaves this module is a `SessionError` (the session or the server is no longer usable)
or another `DvuError` (only this job failed). Exceptions of PySpark do not leave it.
"""

import contextlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rebaser.dvu.spark.bundle import Bundle
from rebaser.dvu.spark.error_text import reason, traceback_error
from rebaser.dvu.wire import mailbox
from rebaser.dvu.wire.packet import Encoded
from rebaser.dvu.worker import evaluate
from rebaser_core import thresholds
from rebaser_core.errors import ConfigError, DvuError

_ROWS = pa.schema([("index", pa.int32()), ("packet", pa.binary()), ("folder", pa.string()), ("isolate", pa.bool_())])
_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    # A job has few rows, so generating Java code for it costs more than it saves. The same holds for the text of its
    # plan, which only a UI shows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "0",
    # A row is a packet. Some packets are large, but most are small, and a batch for each small packet would cost more
    # than all other work.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * 1024 * 1024),
}
# A fork of this process immediately executes another program. So gRPC need not support forks, or warn on stderr that it
# cannot. gRPC reads this variable once, when its first channel is opened.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_DIED = "Python worker exited unexpectedly"
_MANY_ROWS = 1000  # an upper bound: more task slots than one server can use
_HOW = "install it for the Python that the workers run (PYSPARK_PYTHON)"
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\D*([\d.]+\d)\D+([\d.]+\d)")


class SessionError(DvuError):
    """The session is lost or cannot be opened; another session may work."""

    default_code = "session"


class WorkerDied(DvuError):  # noqa: N818 - an event; the caller decides whether it is an error
    """A worker process ended during a job, perhaps because of a function that it called."""


class Session:
    """A session at `url` (sc://…). It may be used from several threads at once.

    `mailboxes` is given if the server is a child of this process. It is a folder for large messages between its workers
    and this process. If the connection to such a server breaks, its jobs are not resumed. `task_slots` tells how many
    tasks Spark runs at once, if known."""

    def __init__(self, url: str, *, mailboxes: Path | None = None, task_slots: int | None = None) -> None:
        """Create the client, without sending anything. Raises `ConfigError` for an invalid URL."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - takes a second; the command line does not need it
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
        from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

        # PySpark would also issue a warning for an error that it raises.
        warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)
        self._spark_errors: tuple[type[Exception], ...] = (PySparkException, *_grpc_errors())
        self._map_function: Callable[..., Any] | None = None
        self._mailboxes = mailboxes
        self.task_slots = task_slots or 1
        self._slots_known = task_slots is not None
        self.sent_bytes = 0  # bytes that were sent and that the server keeps until the session ends
        try:
            self._spark: Any = SparkSession(connection=url)
        except PySparkException as error:
            raise ConfigError(f"the Spark URL is not valid: {reason(error)}") from None
        # By default, PySpark retries for 10 minutes if the server is dead, so the thread would hang for that time.
        self._spark.client.set_retry_policies([DefaultPolicy(max_retries=3, initial_backoff=50, max_backoff=1000)])
        if mailboxes is not None:  # a reattachable job makes half a dozen more calls, in further threads
            self._spark.client.disable_reattachable_execute()

    @property
    def spark(self) -> Any:
        """The session of PySpark."""
        return self._spark

    def open(self) -> None:
        """Connect, prepare the session, and count the task slots unless they are known. Raises `SessionError`."""
        from pyspark.sql.connect.functions import spark_partition_id  # noqa: PLC0415

        try:
            for name, value in _SETTINGS.items():
                self._spark.conf.set(name, value)
            if self._slots_known:
                return
            # Spark cuts a range into as many partitions as it has task slots.
            parts = self._spark.range(0, _MANY_ROWS).select(spark_partition_id().alias("part")).toArrow()
            self.task_slots, self._slots_known = len(parts.column("part").unique()), True
        except self._spark_errors as error:
            raise SessionError(f"a session with Spark cannot be opened: {reason(error)}") from None

    def send_bundle(self, bundle: Bundle) -> None:
        """Send the code that executors are to run for this session from now on. Raises `SessionError`."""
        with tempfile.TemporaryDirectory(prefix="rebaser-") as folder:
            path = Path(folder, bundle.name)
            path.write_bytes(bundle.data)
            try:
                self._spark.addArtifacts(str(path), file=True)
            except self._spark_errors as error:
                raise SessionError(f"Spark does not accept the code for its workers: {reason(error)}") from None
        self._map_function = bundle.map_function()

    def call_workers(self, function: Callable[[int], str], *, tasks: int) -> list[str]:
        """Call `function` in each of `tasks` tasks, without Arrow and without code of Rebaser. Raises the errors of
        `run`."""
        from pyspark.sql.connect.functions import col, udf  # noqa: PLC0415
        from pyspark.sql.types import StringType  # noqa: PLC0415

        call = udf(function, StringType(), useArrow=False)(col("id"))
        try:
            table = self._spark.range(0, tasks, 1, tasks).select(call.alias("reply")).toArrow()
        except self._spark_errors as error:
            raise self._translate(error) from None
        replies: list[str] = table.column("reply").to_pylist()
        return replies

    def run(self, packets: Sequence[bytes], *, tag: str, tasks: int, isolate: bool = False) -> list[list[Encoded]]:
        """Compute packets in one job of at most `tasks` tasks. Returns the results of each packet, in order.

        If `isolate` is true, plug-ins are called in child processes. Raises `DvuError` if a worker refused or failed,
        `WorkerDied` if its process ended, `SessionError` if the session is lost.
        """
        from pyspark.sql.types import (  # noqa: PLC0415
            BinaryType,
            BooleanType,
            IntegerType,
            StringType,
            StructField,
            StructType,
        )

        row_type = StructType(
            [
                StructField("index", IntegerType()),
                StructField("packet", BinaryType()),
                StructField("folder", StringType()),
                StructField("isolate", BooleanType()),
            ]
        )
        schema = StructType([StructField("index", IntegerType()), StructField("result", BinaryType())])
        self._spark.addTag(tag)
        try:
            with mailbox.job_folder(tag, self._mailboxes) as folder:
                frame = self._frame(_rows(packets, folder, isolate))
                if len(packets) > tasks:
                    frame = frame.coalesce(tasks)
                frame._cached_schema = row_type  # noqa: SLF001 - else PySpark asks the server, for a tenth of the time of a small job
                table = frame.mapInArrow(self._map_function or evaluate.evaluate_batches, schema).toArrow()
                return _results(table, len(packets), folder)
        except self._spark_errors as error:
            raise self._translate(error) from None
        finally:
            self._spark.removeTag(tag)

    def visited_nodes(self, tag: str) -> int:
        """Return the number of nodes that the workers of the job with `tag` have reported as visited."""
        return mailbox.visited_nodes(self._mailboxes / tag) if self._mailboxes is not None else 0

    def _translate(self, error: Exception) -> DvuError:
        """Return the error of a job in one line. Its type shows whether the session is lost."""
        from pyspark.errors import PythonException  # noqa: PLC0415

        if isinstance(error, PythonException):
            name, message = traceback_error(str(error))
            if other := _OTHER_PYTHON.search(message):
                return DvuError(
                    f"Spark's workers run Python {other[1]} and this server {other[2]}: have PYSPARK_PYTHON name a "
                    f"Python {other[2]}, for the Connect server and on every machine of Spark",
                    code="other_code",
                )
            if name == "ModuleNotFoundError":
                return DvuError(f"Spark's workers lack a package ({message[:200]}): {_HOW}", code="other_code")
            return DvuError(message if name == "DvuError" else f"a Spark worker failed: {reason(error)}")
        with contextlib.suppress(*self._spark_errors):
            self._spark.conf.get("spark.sql.adaptive.enabled")  # if the server answers, only the job is lost
            text, why = str(error), reason(error)
            return (WorkerDied if _DIED in text else DvuError)(f"the Spark job failed: {why}")
        return SessionError(f"Spark is lost: {reason(error)}")

    def _frame(self, rows: pa.Table) -> Any:
        from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415
        from pyspark.sql.connect.plan import LocalRelation  # noqa: PLC0415

        if rows.nbytes <= thresholds.now.local_relation_max_bytes:
            # `createDataFrame` does the same, but asks the server for its settings each time.
            return DataFrame(LocalRelation(rows), self._spark)
        self.sent_bytes += rows.nbytes
        return self._spark.createDataFrame(rows)

    def interrupt(self, tag: str) -> None:
        """Make the server stop the job with `tag`, so that its `run` raises. Raises `SessionError`."""
        try:
            self._spark.interruptTag(tag)
        except self._spark_errors as error:
            raise SessionError(f"the job cannot be interrupted: {reason(error)}") from None

    def disconnect(self) -> None:
        """Close the connection at once. Every call that waits for the server raises.

        This waits briefly for threads of gRPC, so it must not be called on the event loop.
        """
        self._spark.client._channel.close()  # noqa: SLF001 - `close()` would wait for the server first

    def close(self) -> None:
        """End the session on the server, and close the connection. A dead server is no error."""
        with contextlib.suppress(*self._spark_errors):
            self._spark.stop()


def _rows(packets: Sequence[bytes], folder: str, isolate: bool = False) -> pa.Table:
    """Return a row for each packet; null for a packet that is in the mailbox `folder`."""
    posted = [mailbox.put(folder, f"{index}", packet) for index, packet in enumerate(packets)]
    data = [None if in_mailbox else packet for in_mailbox, packet in zip(posted, packets, strict=True)]
    count = len(packets)
    return pa.table([list(range(count)), data, [folder] * count, [isolate] * count], schema=_ROWS)


def _results(table: pa.Table, count: int, folder: str) -> list[list[Encoded]]:
    """Return the results of each of `count` packets."""
    results: list[list[Encoded]] = [[] for _ in range(count)]
    for index, result in zip(table.column("index").to_pylist(), table.column("result"), strict=True):
        parts = results[index]
        parts.append(result.as_py() if result.is_valid else mailbox.get(folder, f"{index}-{len(parts)}"))
    return results


def _grpc_errors() -> tuple[type[Exception], ...]:
    import grpc  # noqa: PLC0415

    return grpc.RpcError, ValueError  # gRPC raises ValueError for a channel that was closed
