"""Carries out a single run of the garbage collection outside of a server, for `rebaser gc`."""

import os
import sys
import time
from contextlib import suppress

from rebaser.gc.collector import Collector, Run
from rebaser.gc.spark_tables import SparkTables, own_spark
from rebaser.settings import Settings
from rebaser_client.blobs import open_collectable
from rebaser_client.errors import NotReadyError
from rebaser_client.jetstream import ApiError, Connection, JetStream, NoAnswerError
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND
from rebaser_core.blobs.garbage import GC_KEY
from rebaser_core.ids import ulid
from rebaser_core.messages import REGISTRY
from rebaser_core.streams.subjects import Subjects


def use_half_of_the_cpus() -> None:
    """Leave half of the CPUs to servers and NATS on the same machine: use only the other half, in this process and in
    all processes that it starts from now on. Call this before other threads start. It has an effect only on Linux."""
    if sys.platform == "linux":
        cpus = sorted(os.sched_getaffinity(0))
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setaffinity(0, cpus[len(cpus) // 2 :])


def new_id() -> str:
    """Return a new ULID, which is unique and sorts by time."""
    return ulid(time.time_ns() // 1_000_000, os.urandom(10))


async def collect_once(settings: Settings, grace: float, *, dry: bool = False, urgent: bool = False) -> Run:
    """Carry out one run on the Spark that `settings` specifies. If that is the embedded Spark, start it for the run;
    unless `urgent` is true, it and this process run only on idle CPUs.

    `grace` is in seconds; for `dry`, see `Collector.run`. Raise the errors of `Collector.run`, `ConfigError` for a
    wrong setting, `NotConnectedError` if NATS cannot be reached, `NotAllowed` if NATS refuses a call, and
    `NotReadyError` if the streams do not exist.
    """
    REGISTRY.build()
    subjects = Subjects(settings.prefix)
    async with Connection.connect(
        settings.nats_url, name="rebaser-gc", inbox_prefix=settings.inbox_prefix, **settings.access()
    ) as connection:
        js = JetStream(connection)
        try:
            await js.stream_info(subjects.commits_stream)
        except ApiError as error:
            if error.err_code == STREAM_NOT_FOUND:
                raise NotReadyError from error
            raise
        if not dry:
            # Without the permission to record the run, fail now rather than after the start of Spark.
            with suppress(NoAnswerError):
                await connection.request(subjects.commits(GC_KEY), b"", {"Nats-Expected-Stream": "nobody"})
        blobs = open_collectable(settings.blobs, js, subjects.blobs_bucket)
        async with own_spark(settings, urgent=urgent) as url:
            tables = SparkTables(url, js, subjects, settings)
            try:
                collector = Collector(js, subjects, blobs, tables, owner=settings.server_id, new_id=new_id, grace=grace)
                return await collector.run(dry=dry)
            finally:
                await tables.close()
