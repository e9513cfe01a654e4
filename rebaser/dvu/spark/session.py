"""One Spark Connect session, with blocking calls: for threads, never for the event loop.

Invariant: every exception that leaves this module is a `SessionError` (the session or the server is no longer good) or
a `DvuError` (this job is not); PySpark's own stay inside.
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

_ROWS = pa.schema([("slot", pa.int32()), ("packet", pa.binary()), ("folder", pa.string()), ("isolate", pa.bool_())])
_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    # A job has a few rows: Java made for it costs more than it saves, and so does the text of its plan for a UI.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "0",
    # A row is a packet, and may be big; to most a batch of its own would be what takes longest.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * 1024 * 1024),
}
# What this process forks becomes another program at once. gRPC, which would get ready to go on in it, says on stderr
# when it cannot; it looks here once, when its first channel is opened.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_DIED = "Python worker exited unexpectedly"
_MANY = 1000  # more than any Spark has places that are of use to one server
_HOW = "install it for the Python that the workers run (PYSPARK_PYTHON)"
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH\D*([\d.]+\d)\D+([\d.]+\d)")


class SessionError(DvuError):
    """The session is lost or cannot be had; another may be."""

    default_code = "session"


class WorkerDied(DvuError):  # noqa: N818 - what happened, and the caller decides what that means
    """A worker's process ended amid a job: what it computed may have ended it."""


class Session:
    """A session at `url` (sc://…). Calls from several threads at once are fine.

    `near`: the server is a child of this process, and a connection that breaks is not worth waiting for; a folder where
    its workers and this process leave each other what is large. `places`: how many tasks Spark runs at once, if known.
    """

    def __init__(self, url: str, *, near: Path | None = None, places: int | None = None) -> None:
        """Make the client; nothing is sent yet. Raises `ConfigError` for a URL that is none."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - a second to load; not for the command line
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
        from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

        # PySpark warns of what it then raises.
        warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)
        self._foreign: tuple[type[Exception], ...] = (PySparkException, *_grpc_errors())
        self._shipped: Callable[..., Any] | None = None
        self._parcels = near
        self.places = places or 1
        self._counted = places is not None
        self.sent = 0  # bytes that the server keeps until the session ends
        try:
            self._spark: Any = SparkSession(connection=url)
        except PySparkException as error:
            raise ConfigError(f"the Spark URL is not valid: {reason(error)}") from None
        # By default a dead server is asked for 10 minutes, and a thread hangs as long.
        self._spark.client.set_retry_policies([DefaultPolicy(max_retries=3, initial_backoff=50, max_backoff=1000)])
        if near is not None:  # else each job takes half a dozen more calls, and threads for them
            self._spark.client.disable_reattachable_execute()

    def open(self) -> None:
        """Reach the server, prepare the session and count its places, unless they are known. Raises `SessionError`."""
        from pyspark.sql.connect.functions import spark_partition_id  # noqa: PLC0415

        try:
            for name, value in _SETTINGS.items():
                self._spark.conf.set(name, value)
            if self._counted:
                return
            # Spark cuts what has no parts as often as it has places.
            parts = self._spark.range(0, _MANY).select(spark_partition_id().alias("part")).toArrow()
            self.places, self._counted = len(parts.column("part").unique()), True
        except self._foreign as error:
            raise SessionError(f"no session with Spark: {reason(error)}") from None

    def ship(self, bundle: Bundle) -> None:
        """Send the server what executors shall run for this session from now on. Raises `SessionError`."""
        with tempfile.TemporaryDirectory(prefix="rebaser-") as folder:
            path = Path(folder, bundle.name)
            path.write_bytes(bundle.data)
            try:
                self._spark.addArtifacts(str(path), file=True)
            except self._foreign as error:
                raise SessionError(f"Spark does not take the code for its workers: {reason(error)}") from None
        self._shipped = bundle.evaluator()

    def ask(self, function: Callable[[int], str], *, tasks: int) -> list[str]:
        """What workers say, in so many tasks; they need neither Arrow nor anything of ours for it. Raises as `run`."""
        from pyspark.sql.connect.functions import col, udf  # noqa: PLC0415
        from pyspark.sql.types import StringType  # noqa: PLC0415

        asked = udf(function, StringType(), useArrow=False)(col("id"))
        try:
            found = self._spark.range(0, tasks, 1, tasks).select(asked.alias("said")).toArrow()
        except self._foreign as error:
            raise self._translated(error) from None
        said: list[str] = found.column("said").to_pylist()
        return said

    def run(self, packets: Sequence[bytes], *, tag: str, tasks: int, isolate: bool = False) -> list[list[Encoded]]:
        """Compute packets in one job of at most `tasks` tasks; the results of each, in order. `isolate`: plug-ins are
        called in processes of their own.

        Raises `DvuError` if a worker refused or failed, `WorkerDied` if it ended, `SessionError` if the session did.
        """
        from pyspark.sql.types import (  # noqa: PLC0415
            BinaryType,
            BooleanType,
            IntegerType,
            StringType,
            StructField,
            StructType,
        )

        given = StructType(
            [
                StructField("slot", IntegerType()),
                StructField("packet", BinaryType()),
                StructField("folder", StringType()),
                StructField("isolate", BooleanType()),
            ]
        )
        schema = StructType([StructField("slot", IntegerType()), StructField("result", BinaryType())])
        self._spark.addTag(tag)
        try:
            with mailbox.job_folder(tag, self._parcels) as folder:
                frame = self._frame(_rows(packets, folder, isolate))
                if len(packets) > tasks:
                    frame = frame.coalesce(tasks)
                frame._cached_schema = given  # noqa: SLF001 - or the server is asked for it, a tenth of a small job
                found = frame.mapInArrow(self._shipped or evaluate.evaluate_batches, schema).toArrow()
                return _results(found, len(packets), folder)
        except self._foreign as error:
            raise self._translated(error) from None
        finally:
            self._spark.removeTag(tag)

    def done(self, tag: str) -> int:
        """How many values of the job with `tag` are computed, as far as its workers have told."""
        return mailbox.computed_values(self._parcels / tag) if self._parcels is not None else 0

    def _translated(self, error: Exception) -> DvuError:
        """What went wrong with a job, in one line; whose fault it is by type."""
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
        with contextlib.suppress(*self._foreign):
            self._spark.conf.get("spark.sql.adaptive.enabled")  # it answers: only the job is lost
            text, why = str(error), reason(error)
            return (WorkerDied if _DIED in text else DvuError)(f"the Spark job failed: {why}")
        return SessionError(f"Spark is lost: {reason(error)}")

    def _frame(self, rows: pa.Table) -> Any:
        from pyspark.sql.connect.dataframe import DataFrame  # noqa: PLC0415
        from pyspark.sql.connect.plan import LocalRelation  # noqa: PLC0415

        if (
            rows.nbytes <= thresholds.now.relation
        ):  # as `createDataFrame` does it, which asks the server for its settings each time
            return DataFrame(LocalRelation(rows), self._spark)
        self.sent += rows.nbytes
        return self._spark.createDataFrame(rows)

    def interrupt(self, tag: str) -> None:
        """Make the server stop the job with `tag`; its `run` raises. Raises `SessionError`."""
        try:
            self._spark.interruptTag(tag)
        except self._foreign as error:
            raise SessionError(f"no interrupt: {reason(error)}") from None

    def cut(self) -> None:
        """Close the connection under all that use it; every call that waits for the server raises."""
        self._spark.client._channel.close()  # noqa: SLF001 - `close()` would wait for the server first

    def close(self) -> None:
        """End the session on the server, and the connection. A server that is gone is no error."""
        with contextlib.suppress(*self._foreign):
            self._spark.stop()


def _rows(packets: Sequence[bytes], folder: str, isolate: bool = False) -> pa.Table:
    """A row for each packet; what is left in `folder` is null."""
    slots = range(len(packets))
    left = [mailbox.put(folder, f"{slot}", packet) for slot, packet in zip(slots, packets, strict=True)]
    data = [None if gone else packet for gone, packet in zip(left, packets, strict=True)]
    count = len(packets)
    return pa.table([list(slots), data, [folder] * count, [isolate] * count], schema=_ROWS)


def _results(found: pa.Table, count: int, folder: str) -> list[list[Encoded]]:
    """The results of each of `count` packets."""
    results: list[list[Encoded]] = [[] for _ in range(count)]
    for slot, result in zip(found.column("slot").to_pylist(), found.column("result"), strict=True):
        of = results[slot]
        of.append(result.as_py() if result.is_valid else mailbox.get(folder, f"{slot}-{len(of)}"))
    return results


def _grpc_errors() -> tuple[type[Exception], ...]:
    import grpc  # noqa: PLC0415

    return grpc.RpcError, ValueError  # grpc says ValueError of a channel that was closed
