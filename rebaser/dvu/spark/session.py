"""Wraps a Spark Connect session. Its methods block, so they must run in threads, never on the event loop.

Invariant: this module never raises exceptions of PySpark. It raises `SessionError` if the session or the server is no
longer usable, and another `DvuError` if only the job failed.
"""

import contextlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
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
    # A job has few rows, so generating Java code for it takes longer than it saves. Rendering the job's plan as text
    # takes time too, and only the Spark UI shows that text.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "0",
    # A row is a packet. Most packets are small, so a batch contains many of them: a batch for each packet would take
    # longer than all other work.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * 1024 * 1024),
}
# When this process forks, the child immediately executes another program, so gRPC need not support forks. Without this
# setting, gRPC writes warnings about forks to stderr. gRPC reads the variable once, when its first channel is opened.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_DIED = "Python worker exited unexpectedly"
_CODED = re.compile(rf"\[({'|'.join(evaluate.CODES)})\] (.+)")
_MANY_ROWS = 1000  # a number of rows that is larger than the number of task slots that one server can use
_HOW = "install it for the Python that the workers run (PYSPARK_PYTHON)"
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\D*([\d.]+\d)\D+([\d.]+\d)")
_LIMIT_NAMES = ("MemoryError", "ArrowMemoryError")
_LIMIT_TEXT = re.compile(r"can't start new thread|[Cc]annot allocate memory|bad_alloc|malloc of size|out of memory")
_LIMITS = "raise the limit of its machine or container, or spark.executor.pyspark.memory, or start fewer task slots"


class SessionError(DvuError):
    """Raised if the session is lost or cannot be opened. Another attempt, with a new session, may succeed."""

    default_code = "session"


class WorkerDied(DvuError):  # noqa: N818 - an event; the caller decides whether it is an error
    """Raised if a worker process ended during a job, perhaps because of a function that it called."""


class Session:
    """A session at the Spark Connect server `url` (sc://…). It may be used from several threads at once.

    If the server is a child of this process, `mailboxes` is a folder for large messages between its workers and this
    process; otherwise, it is None. The jobs of such a server are not resumed if the connection breaks. `task_slots` is
    the number of tasks that Spark runs at once, if it is known."""

    def __init__(self, url: str, *, mailboxes: Path | None = None, task_slots: int | None = None) -> None:
        """Create the client, without sending anything. Raise `ConfigError` if the URL is invalid."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - takes a second; the command line does not need it
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
        from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

        # Do not show PySpark's warning about failed retries, because PySpark also raises an error.
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
            raise ConfigError(_invalid_url(url, str(error))) from None
        # By default, PySpark retries for 10 minutes if the server is dead, so the thread would hang for that time.
        self._spark.client.set_retry_policies([DefaultPolicy(max_retries=3, initial_backoff=50, max_backoff=1000)])
        if mailboxes is not None:  # a job that can be resumed makes half a dozen additional calls, in other threads
            self._spark.client.disable_reattachable_execute()

    @property
    def spark(self) -> Any:
        """The PySpark session."""
        return self._spark

    def open(self) -> None:
        """Connect, prepare the session, and count the task slots unless their number is known. Raise `SessionError` if
        that fails."""
        from pyspark.sql.connect.functions import spark_partition_id  # noqa: PLC0415

        try:
            for name, value in _SETTINGS.items():
                self._spark.conf.set(name, value)
            if self._slots_known:
                return
            # Spark divides a range into as many partitions as it has task slots.
            parts = self._spark.range(0, _MANY_ROWS).select(spark_partition_id().alias("part")).toArrow()
            self.task_slots, self._slots_known = len(parts.column("part").unique()), True
        except self._spark_errors as error:
            raise SessionError(f"a session with Spark cannot be opened: {reason(error)}") from None

    def check(self) -> None:
        """Raise `SessionError` if Spark does not answer. The call costs Spark next to nothing."""
        try:
            self._spark.conf.get("spark.sql.adaptive.enabled")
        except self._spark_errors as error:
            raise SessionError(f"Spark does not answer: {reason(error)}") from None

    def send_bundle(self, bundle: Bundle) -> None:
        """Send the code that executors run for this session from now on. Raise `SessionError` if that fails."""
        with tempfile.TemporaryDirectory(prefix="rebaser-") as folder:
            path = Path(folder, bundle.name)
            path.write_bytes(bundle.data)
            try:
                self._spark.addArtifacts(str(path), file=True)
            except self._spark_errors as error:
                raise SessionError(f"Spark does not accept the code for its workers: {reason(error)}") from None
        self._map_function = bundle.map_function()

    def call_workers(self, function: Callable[[int], str], *, tasks: int) -> list[str]:
        """Call `function` in each of `tasks` Spark tasks, and return the results. The workers need neither Arrow nor
        Rebaser. Raise the errors of `run`."""
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
        """Compute `packets` in one Spark job of at most `tasks` tasks. Return the results of each packet, in order.

        `tag` identifies the job. If `isolate` is true, plug-ins are called in child processes. Raise `DvuError` if a
        worker refused a packet or failed, `WorkerDied` if the process of a worker ended, and `SessionError` if the
        session is lost.
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
                frame._cached_schema = row_type  # noqa: SLF001 - saves a request to the server
                table = frame.mapInArrow(self._map_function or evaluate.evaluate_batches, schema).toArrow()
                return _results(table, len(packets), folder)
        except self._spark_errors as error:
            raise self._translate(error) from None
        finally:
            self._spark.removeTag(tag)

    def visited_nodes(self, tag: str) -> Mapping[int, int]:
        """Return the number of nodes that the workers of the job with `tag` have reported as visited, by the index of
        the packet."""
        return mailbox.visited_nodes(self._mailboxes / tag) if self._mailboxes is not None else {}

    def running_function(self, tag: str) -> str:
        """Return the function that a worker of the job with `tag` has been running for seconds; empty if unknown."""
        return mailbox.running_function(self._mailboxes / tag) if self._mailboxes is not None else ""

    def _translate(self, error: Exception) -> DvuError:
        """Return the `DvuError` for an exception of PySpark. If the session is lost, return a `SessionError`."""
        from pyspark.errors import PythonException  # noqa: PLC0415

        if isinstance(error, PythonException):
            name, message = traceback_error(str(error))
            if other := _OTHER_PYTHON.search(message):
                return DvuError(
                    f"Spark's workers run Python {other[1]} and this server {other[2]}: set PYSPARK_PYTHON to a "
                    f"Python {other[2]}, for the Connect server and on every machine of Spark",
                    code="other_code",
                )
            if name == "ModuleNotFoundError":
                return DvuError(f"Spark's workers lack a package ({message[:200]}): {_HOW}", code="other_code")
            if name in _LIMIT_NAMES or (name != "DvuError" and _LIMIT_TEXT.search(message)):
                return DvuError(f"a Spark worker reached a limit of memory or threads ({reason(error)}): {_LIMITS}")
            if name == "DvuError":
                coded = _CODED.match(message)
                return DvuError(coded[2], code=coded[1]) if coded else DvuError(message)
            return DvuError(f"a Spark worker failed: {reason(error)}")
        with contextlib.suppress(*self._spark_errors):
            self._spark.conf.get("spark.sql.adaptive.enabled")  # if the server answers, only the job is lost
            text, why = str(error), reason(error)
            return (WorkerDied if _DIED in text else DvuError)(f"the Spark job failed: {why}")
        return SessionError(f"the session with Spark was lost: {reason(error)}")

    def _frame(self, rows: pa.Table) -> Any:
        from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415
        from pyspark.sql.connect.plan import LocalRelation  # noqa: PLC0415

        if rows.nbytes <= thresholds.now.local_relation_max_bytes:
            # `createDataFrame` does the same, but requests the settings of the server in each call.
            return DataFrame(LocalRelation(rows), self._spark)
        self.sent_bytes += rows.nbytes
        return self._spark.createDataFrame(rows)

    def interrupt(self, tag: str) -> None:
        """Make the server stop the job with `tag`, so that `run` raises an error. Raise `SessionError` if the server
        does not accept the request."""
        try:
            self._spark.interruptTag(tag)
        except self._spark_errors as error:
            raise SessionError(f"the job cannot be interrupted: {reason(error)}") from None

    def disconnect(self) -> None:
        """Close the connection at once. All calls that wait for the server then raise an error.

        This method waits briefly for gRPC's threads, so it must not be called on the event loop.
        """
        self._spark.client._channel.close()  # noqa: SLF001 - `close()` would wait for the server first

    def close(self) -> None:
        """End the session on the server, and close the connection. If the server is dead, no error is raised."""
        with contextlib.suppress(*self._spark_errors):
            self._spark.stop()


def _rows(packets: Sequence[bytes], folder: str, isolate: bool = False) -> pa.Table:
    """Return a table with a row for each packet. The packet is null if it was put into the mailbox `folder`."""
    posted = [mailbox.put(folder, f"{index}", packet) for index, packet in enumerate(packets)]
    data = [None if in_mailbox else packet for in_mailbox, packet in zip(posted, packets, strict=True)]
    count = len(packets)
    return pa.table([list(range(count)), data, [folder] * count, [isolate] * count], schema=_ROWS)


def _results(table: pa.Table, count: int, folder: str) -> list[list[Encoded]]:
    """Return the results in `table` for each of `count` packets. A null result is in the mailbox `folder`."""
    results: list[list[Encoded]] = [[] for _ in range(count)]
    for index, result in zip(table.column("index").to_pylist(), table.column("result"), strict=True):
        parts = results[index]
        parts.append(result.as_py() if result.is_valid else mailbox.get(folder, f"{index}-{len(parts)}"))
    return results


def _invalid_url(url: str, text: str) -> str:
    """Return the message for a URL that PySpark refuses with `text`. PySpark quotes the URL, and thus the token."""
    token = re.search(r"\btoken=([^;]+)", url, re.IGNORECASE)
    if token is None:
        return f"the Spark URL is not valid: {reason(ValueError(text))}"
    told = reason(ValueError(text.replace(token[1], "***")))
    return f"the Spark URL is not valid: {told}; special characters of the token must be encoded (/ as %2F, = as %3D)"


def _grpc_errors() -> tuple[type[Exception], ...]:
    import grpc  # noqa: PLC0415

    return grpc.RpcError, ValueError  # gRPC raises ValueError for a channel that was closed
