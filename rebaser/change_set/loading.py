"""Loads a change set for its owner: reads the log, and opens the queue of requests.

Invariant: a new epoch of the request stream (see `decided_through`) is assumed only if the stream was described after
the log was read. Otherwise, a request that another owner decided in between could seem to be beyond the end of the
stream, as if the stream had been restored from a backup.
"""

from collections.abc import Callable

from rebaser.change_set.known_functions import load_functions
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.runtime.context import Context
from rebaser.runtime.reading import reading
from rebaser_client.jetstream import OrderedConsumer, StreamInfo
from rebaser_client.task_groups import flat_task_group
from rebaser_core.commit import Applied
from rebaser_core.decisions.decide import decided_through
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.record import record

HEARTBEAT = 30.0  # seconds; `QueueWatch` notices sooner that requests are not delivered


@record
class OpenChangeSet:
    """The log and the open queue of a change set. `applied` is the highest decided sequence of the request stream, and
    `end` the sequence of the newest message of that stream when it was described."""

    commits: CommitLog
    consumer: OrderedConsumer
    applied: Applied
    end: int


async def open_change_set(context: Context, key: ChangeSetKey, on_ready: Callable[[], None]) -> OpenChangeSet:
    """Read the log and open the queue of `key`. The caller closes the queue. For `on_ready`, see `OrderedConsumer`.

    The log is read, the request stream is described and the queue is opened at the same time, because each takes a
    round trip. A request that is delivered before the log is read may be decided already; the log then has its outcome.

    `Context.loads` notes what is being read. Raise the errors of `open_log`, `SharedStreamInfo.start` and
    `OrderedConsumer`, and `TransientError` with code `stream_lost` if the stream was replaced meanwhile.
    """
    with context.loads.loading(key):
        return await _open(context, key, on_ready)


async def _open(context: Context, key: ChangeSetKey, on_ready: Callable[[], None]) -> OpenChangeSet:
    subjects = context.subjects
    consumer = OrderedConsumer(
        context.js,
        subjects.requests_stream,
        subjects.requests(key),
        on_ready=on_ready,
        idle_heartbeat=HEARTBEAT,
    )
    is_open = False

    async def open_queue() -> None:
        nonlocal is_open
        with reading("the queue of requests"):
            await consumer.__aenter__()
        is_open = True

    description = context.requests_info.start()
    try:
        async with flat_task_group() as group:
            group.start_soon(open_queue)
            commits = await open_log(context, key)
            with reading("the state of the queue"):
                stream = await description
        applied = commits.state.applied
        decided = decided_through(commits.state, stream.created, stream.last_sequence)
        if applied is not None and decided != applied.sequence:
            stream = await context.requests_info.start()
            decided = decided_through(commits.state, stream.created, stream.last_sequence)
        _check_same(stream, consumer)
    except BaseException:
        description.cancel()
        if is_open:
            await consumer.__aexit__(None, None, None)
        raise
    return OpenChangeSet(commits, consumer, Applied(stream.created, decided), stream.last_sequence)


async def open_log(context: Context, key: ChangeSetKey) -> CommitLog:
    """Load the log of `key`. Raise the errors of `StateLoader.load`."""
    with reading("the plug-ins"):
        await load_functions()
    with reading("the log"):
        loaded = await context.reader.load(key)

    def unanswered(error: TransientError) -> None:
        context.stream_watch.check_soon()  # a missing stream may be the cause
        text = f"NATS has not answered an append to the log: {error.message}"
        context.health.record(context.now(), TransientError(text, code="append_unanswered"), key=key)

    commits = CommitLog(
        context.js,
        context.subjects,
        key,
        loaded,
        blobs=context.blobs,
        owner=context.settings.server_id,
        inline_max=context.connection.max_payload // 2,
        retry_window=context.settings.retry_window,
        history=context.settings.history_for > 0 or loaded.state.branch is not None,
        now_ms=context.now_ms,
        new_id=context.new_id,
        on_unanswered=unanswered,
    )
    commits.traces, commits.own_commits = context.traces, context.own_commits
    return commits


def _check_same(stream: StreamInfo, consumer: OrderedConsumer) -> None:
    """Raise `TransientError` if `consumer` reads another stream, because `stream` says nothing about its requests."""
    if consumer.created != stream.created:
        raise TransientError(f"stream {stream.name} was replaced while a change set was loaded", code="stream_lost")
