"""Finds garbage on Spark, with the tables `blobs` and `references` of the data source.

Invariant: when a method returns a table, Spark has read the table completely and stored it. Spark never reads the table
again.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import anyio
from anyio import to_thread

from rebaser.dvu.spark.blocking import DeadlineExceeded, run_interruptible, run_shielded
from rebaser.dvu.spark.error_text import reason
from rebaser.dvu.spark.session import Session
from rebaser.embedded.priority import run_when_idle
from rebaser.embedded.spark import Jvm, check_java, default_parallelism, spark_master
from rebaser.gc.finding import Found
from rebaser.settings import Settings
from rebaser_client.jetstream import JetStream
from rebaser_core.blobs.garbage import StoredBlob
from rebaser_core.errors import DvuError
from rebaser_core.streams.subjects import Subjects

T = TypeVar("T")
Frame: TypeAlias = Any

START_TIMEOUT = 120.0  # seconds that an embedded Spark may take to start
TIMEOUT = 7200.0  # seconds that one table may take; its readers wait for idle CPUs, and rest for up to `MAX_RESTED` s


class SparkTables:
    """An implementation of `Tables` on the Spark Connect server at `url`. Call `close` at the end.

    `tasks` is the number of Spark tasks that may run at once; the other slots remain for updates.
    """

    def __init__(self, url: str, js: JetStream, subjects: Subjects, settings: Settings, *, tasks: int = 1) -> None:
        self._session = Session(url, task_slots=tasks)
        self._js = js
        self._subjects = subjects
        self._options = source_options(settings, tasks)
        self._opened = False

    async def stored(self) -> Frame:
        return await self._read({"table": "blobs"})

    async def queued(self) -> Frame:
        return await self._read({"table": "references", "messages": "queued"}, "address")

    async def newest(self) -> int:
        return (await self._js.stream_info(self._subjects.commits_stream)).last_sequence

    async def commits(self, after: int, *, split: bool) -> Frame:
        options = {"table": "references", "messages": "commits", "start": str(after)}
        return await self._read(options | ({} if split else {"partitions": "1"}), "address")

    async def join(self, stored: Frame, needed: Sequence[Frame]) -> Found:
        def compute() -> Found:
            addresses = needed[0]
            for more in needed[1:]:
                addresses = addresses.union(more)
            addresses = addresses.distinct()
            unneeded = stored.join(addresses, "address", "left_anti")
            in_trash = stored.where("trashed").join(addresses, "address", "left_semi")
            total = stored.selectExpr("count(*) AS blobs", "coalesce(sum(size), 0) AS size").toArrow().to_pylist()[0]
            return Found(_blobs(unneeded), _blobs(in_trash), total["blobs"], total["size"])

        return await self._run(compute)

    async def close(self) -> None:
        await run_shielded(self._session.disconnect if not self._opened else self._session.close)

    async def _read(self, options: Mapping[str, str], *columns: str) -> Frame:
        def load() -> Frame:
            frame = self._session.spark.read.format("rebaser").options(**(self._options | dict(options))).load()
            return (frame.select(*columns) if columns else frame).localCheckpoint(eager=True)

        return await self._run(load)

    async def _run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which calls PySpark and runs in a thread. Raise `DvuError` if it fails or takes
        longer than `TIMEOUT` seconds."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - takes a second
        from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

        def run() -> T:
            active = SparkSession._active_session  # noqa: SLF001 - thread-local; PySpark checkpoints use it
            before = getattr(active, "session", None)
            active.session = self._session.spark
            try:
                if not self._opened:
                    self._open()
                return call()
            except PySparkException as error:
                raise DvuError(f"the search for garbage on Spark failed: {_explain(error)}", code="gc_failed") from None
            finally:
                active.session = before

        def interrupt() -> None:
            with suppress(PySparkException):
                self._session.spark.interruptAll()
            self._session.disconnect()

        async def disconnect(_: anyio.Event) -> None:
            await run_shielded(interrupt)

        try:
            return await run_interruptible(run, disconnect, seconds=TIMEOUT)
        except DeadlineExceeded:
            raise DvuError(
                f"the search for garbage on Spark took longer than {TIMEOUT:g} s; nothing was deleted: on a machine "
                "whose processors are always busy, use `rebaser gc --urgent`",
                code="gc_failed",
            ) from None

    def _open(self) -> None:
        from rebaser_client.spark import RebaserDataSource  # noqa: PLC0415 - needs PySpark

        self._session.open()
        spark = self._session.spark
        # Addresses are hashes, so all partitions of the join have about the same size. More partitions than cores would
        # not make it faster.
        spark.conf.set("spark.sql.shuffle.partitions", str(self._session.task_slots))
        spark.dataSource.register(RebaserDataSource)
        self._opened = True


@asynccontextmanager
async def own_spark(settings: Settings, *, urgent: bool = False) -> AsyncIterator[str]:
    """Yield the URL of the Spark that `settings` specifies. If that is the embedded Spark, start it, and stop it at the
    end.

    Unless `urgent` is true, the embedded Spark and this process run only on idle CPUs once Spark is up, so that servers
    on the same machine take precedence.

    Raise `ConfigError` if there is no usable Java, and `DvuError` if Spark does not start.
    """
    if not settings.spark.startswith("local"):
        yield settings.spark
        return
    await to_thread.run_sync(check_java)
    scratch = settings.scratch.absolute() if settings.scratch else None
    master = spark_master(settings.spark, default_parallelism())
    jvm = Jvm(master, memory=settings.spark_driver_memory, scratch=scratch)

    async def kill(_: anyio.Event) -> None:
        jvm.kill()

    try:
        try:
            await run_interruptible(jvm.start, kill, seconds=START_TIMEOUT)
        except DeadlineExceeded:
            raise DvuError(f"the embedded Spark did not start within {START_TIMEOUT:g} s") from None
        if not urgent:
            jvm.run_when_idle()  # not earlier, because a busy machine would not start it in time
            run_when_idle(os.getpid())
        yield jvm.url
    finally:
        await run_shielded(jvm.stop)


def source_options(settings: Settings, tasks: int) -> dict[str, str]:
    """Return the data source options for reading the installation that `settings` describes. `tasks` is the number of
    partitions."""
    access = settings.access()
    given: dict[str, object] = {
        "nats": settings.nats_url,
        "prefix": settings.prefix,
        "inboxPrefix": settings.inbox_prefix,
        "blobs": settings.blobs,
        "partitions": tasks,
        "credentials": access["creds"],
        "nkey": access["nkey"],
        "user": access["user"],
        "password": access["password"],
        "passwordFile": access["password_file"],
        "token": access["token"],
        "tokenFile": access["token_file"],
        "tlsCa": access["tls_ca"],
        "tlsCert": access["tls_cert"],
        "tlsKey": access["tls_key"],
        "tlsHostname": access["tls_hostname"],
        "tlsFirst": access["tls_first"],
        "domain": access["domain"],
    }
    return {name: str(value) for name, value in given.items() if value not in (None, "")}


def _blobs(frame: Frame) -> tuple[StoredBlob, ...]:
    columns = frame.selectExpr("address", "size", "unix_millis(stored_at) AS stored_ms", "version", "trashed")
    return tuple(StoredBlob(**row) for batch in columns.toArrow().to_batches() for row in batch.to_pylist())


def _explain(error: Exception) -> str:
    text = reason(error)
    if "No module named 'rebaser" in str(error):
        text += "; install rebaser for the Python that Spark's workers run (PYSPARK_PYTHON)"
    return text
