"""Opens the parts that all owners of a server share: the connection, the stores, the DVU engine, the clocks."""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from anyio import to_thread

from rebaser.dvu.spark.engine import Engine, EngineSettings
from rebaser.embedded.spark import Jvm
from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.runtime.health import HealthStatus
from rebaser.runtime.measured import MeasuredBlobs, MeasuredJetStream
from rebaser.runtime.own_commits import OwnCommits
from rebaser.runtime.progress import Progress
from rebaser.runtime.quiet_checkpoints import QuietCheckpoints
from rebaser.runtime.reading import Loads
from rebaser.runtime.recent_updates import RecentUpdates
from rebaser.runtime.request_deleter import RequestDeleter
from rebaser.runtime.round import Round
from rebaser.runtime.shared_info import SharedStreamInfo
from rebaser.runtime.slots import UNKNOWN_MEMORY, memory_limit
from rebaser.runtime.stream_watch import StreamWatch
from rebaser.runtime.tail_cache import TailCache
from rebaser.settings import Settings
from rebaser.telemetry.tracing import tracing
from rebaser_client.backoff import Backoff
from rebaser_client.blobs import BlobStore, open_blobs
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey, random_ulid
from rebaser_core.streams.subjects import Subjects

if TYPE_CHECKING:
    from rebaser.telemetry.spans import ServerSpans

log = structlog.get_logger(__name__)

RETRY_NATS, RETRY_NATS_MAX = 0.2, 5.0  # initial and maximum seconds between attempts to reach NATS during startup


@dataclass(frozen=True, slots=True)
class Context:
    """The shared parts of one server. `now` returns monotonic seconds, `now_ms` Unix milliseconds, `new_id` a new ULID.
    `requests_info` describes the stream of requests. `memory` is the number of bytes of memory that this process may
    use. `tails` keeps the commits that were copied for new change sets. `running_updates` has the progress of each
    update that is running. Owners whose requests arrive together prepare their commits in a `round`. `traces` makes the
    spans of change sets; it is None if traces are off.

    An owner holds `suspect_request_lock` while it attempts a request that may have killed servers (see
    `rebaser.change_set.attempts.poison`), and `suspect_dvu_lock` while it runs a DVU that may have killed servers.
    `quiet_checkpoints` are the turns in which change sets write a checkpoint before they are released. `own_commits`
    are commits of this server whose headers its sweeper need not read.
    """

    settings: Settings
    connection: Connection
    js: JetStream
    stream_watch: StreamWatch
    subjects: Subjects
    blobs: BlobStore
    reader: StateLoader
    engine: Engine
    deleter: RequestDeleter
    requests_info: SharedStreamInfo
    dead_letters: DeadLetterPublisher
    now: Callable[[], float]
    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    memory: int = UNKNOWN_MEMORY
    tails: TailCache = field(default_factory=TailCache)
    health: HealthStatus = field(default_factory=HealthStatus)
    loads: Loads = field(default_factory=Loads)
    running_updates: dict[ChangeSetKey, Progress] = field(default_factory=dict)
    recent_updates: RecentUpdates = field(default_factory=RecentUpdates)
    suspect_request_lock: anyio.Lock = field(default_factory=anyio.Lock)
    suspect_dvu_lock: anyio.Lock = field(default_factory=anyio.Lock)
    quiet_checkpoints: QuietCheckpoints = field(default_factory=QuietCheckpoints)
    round: Round = field(default_factory=Round)
    own_commits: OwnCommits = field(default_factory=OwnCommits)
    traces: "ServerSpans | None" = None


@asynccontextmanager
async def open_context(
    settings: Settings,
    jvm: Jvm | None = None,
    engine: AbstractAsyncContextManager[Any] | None = None,
    *,
    traced: bool = True,
    nats_awaited: Callable[[str], None],
    streams_awaited: Callable[[str], None],
) -> AsyncIterator[Context]:
    """Connect to NATS, create missing streams, and start Spark in the background. Yield the shared parts.

    `jvm` is the embedded Spark, if it has already been started. `engine` is an engine to use instead of Spark. If
    `traced` is false, no traces are recorded. `nats_awaited` is called with the reason each time NATS could not be
    reached, and, once it is connected, `streams_awaited` each time the streams could not be used. The first reason for
    which the streams are awaited is empty.

    Raise `ConfigError` if the settings are wrong, and the errors of `Connection.connect` and `StreamWatch.ensure`.
    """
    settings.check_server()
    subjects = Subjects(settings.prefix)
    async with AsyncExitStack() as stack:
        deadline = anyio.current_time() + settings.wait_for_nats
        connection = await _connect(stack, settings, deadline, nats_awaited)
        streams_awaited("")
        js = MeasuredJetStream(connection)
        stream_watch = StreamWatch(js, subjects, settings.topology(), create=settings.create_streams)
        await _ensure_streams(stream_watch, deadline, streams_awaited)
        blobs = MeasuredBlobs(open_blobs(settings.blobs, js, subjects.blobs_bucket))
        spans = tracing(
            server_id=settings.server_id,
            ratio=settings.trace_ratio,
            per_second=settings.trace_per_second,
            slower_than=settings.trace_slower_than,
            updates_slower_than=settings.progress_every,
        )
        traces = await stack.enter_async_context(spans) if traced else None
        computing = await stack.enter_async_context(engine or _spark(settings, blobs, jvm))
        yield Context(
            settings=settings,
            connection=connection,
            js=js,
            stream_watch=stream_watch,
            subjects=subjects,
            blobs=blobs,
            reader=StateLoader(js, subjects, blobs, share_ids=True),
            engine=computing,
            deleter=RequestDeleter(js, subjects.requests_stream, partial(stream_watch.note_refusal, what="deletions")),
            requests_info=SharedStreamInfo(js, subjects.requests_stream),
            dead_letters=DeadLetterPublisher(js, subjects, blobs, settings.server_id),
            now=time.monotonic,
            now_ms=lambda: time.time_ns() // 1_000_000,
            new_id=lambda: random_ulid(time.time_ns() // 1_000_000, os.urandom(16)),
            memory=await to_thread.run_sync(memory_limit),
            traces=traces,
        )


def _spark(settings: Settings, blobs: BlobStore, jvm: Jvm | None) -> Engine:
    return Engine(
        settings.spark,
        EngineSettings(
            driver_memory=settings.spark_driver_memory,
            # The JVM has its own working folder, so a relative path would name a different folder there.
            scratch=settings.scratch.absolute() if settings.scratch else None,
            # A job gets half of `dvu_timeout`. If one DVU is too slow, the others in its job still have time to retry.
            job_timeout=settings.dvu_timeout / 2,
            blobs=blobs,
            blobs_url=settings.blobs or "",
            jvm=jvm,
        ),
    )


async def _connect(
    stack: AsyncExitStack, settings: Settings, deadline: float, awaited: Callable[[str], None]
) -> Connection:
    """Connect to NATS. While NATS cannot be reached, retry until `deadline`. If NATS refuses the connection, raise the
    error at once."""
    backoff = Backoff(RETRY_NATS, RETRY_NATS_MAX)
    while True:
        connecting = Connection.connect(
            settings.nats_url,
            name=f"rebaser {settings.server_id}",
            inbox_prefix=settings.inbox_prefix,
            ping_interval=settings.ping_interval,
            **settings.access(),
        )
        try:
            return await stack.enter_async_context(connecting)
        except NotConnectedError as error:
            if type(error) is not NotConnectedError or anyio.current_time() >= deadline:
                raise
            awaited(error.message)
            log.warning("nats_awaited", reason=error.message, seconds=round(deadline - anyio.current_time(), 1))
        await anyio.sleep(backoff.next_delay())


async def _ensure_streams(stream_watch: StreamWatch, deadline: float, awaited: Callable[[str], None]) -> None:
    """Create missing streams, or check that they exist. Retry until `deadline` while JetStream is not available, or
    while streams are missing that this server may not create."""
    backoff = Backoff(RETRY_NATS, RETRY_NATS_MAX)
    while True:
        try:
            return await stream_watch.ensure()
        except TransientError as error:
            if anyio.current_time() >= deadline:
                raise
            awaited(error.message)
            log.warning("streams_awaited", reason=error.message, seconds=round(deadline - anyio.current_time(), 1))
        await anyio.sleep(backoff.next_delay())
