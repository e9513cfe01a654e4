"""Publishes tasks: messages without a body that say "this change set needs an owner".

The client first stores a request and awaits its ack, and then publishes the task of the change set. If the change set
already has a task, that task is sufficient.

Invariant: each call of `TaskPublisher.publish` is served by a publish that *begins* after the call, because only such a
publish certainly follows the caller's request. For each change set, one publish runs at a time, and calls that are made
meanwhile share the next publish.

The answer to a request shows that the change set has an owner. Therefore, while the requests of a change set are being
answered, its task is published only if a request stays unanswered for several times the usual time of an answer, and
for at least `PATIENCE` seconds. Without this delay, a slow server would get a task with every request.

The first request of a change set is preceded by a hint: a task that is sent together with the request, and without an
ack. Nearly always, it wakes an owner a round trip earlier, and the answer makes another task unnecessary. Nothing
relies on a hint: a request that stays unanswered is served by a publish that begins after its ack, as described above.

If a task cannot be published, because the stream is full or NATS does not answer for `GIVE_UP` seconds, the sweeper
finds the request and publishes the task.
"""

import asyncio
from collections import deque

import anyio
from anyio.abc import TaskGroup

from rebaser_client.backoff import Backoff
from rebaser_client.jetstream import ApiError, JetStream, Msg
from rebaser_client.jetstream.errors import is_full, is_subject_full
from rebaser_client.logs import get_logger
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.encoding.envelope import MESSAGE_ID
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects

log = get_logger(__name__)

RETRY_MIN, RETRY_MAX = 0.05, 1.0  # seconds between attempts, before jitter
GIVE_UP = 30.0  # seconds; a cluster that lost a node takes about ten seconds to elect a leader
# If an owner answered recently, a task is published only after `USUAL_TIMES` times the usual time of an answer.
USUAL_TIMES = 4
PATIENCE, PATIENCE_MAX = 0.02, 0.5  # the minimum and the maximum of that delay, in seconds
RECENTLY = 5.0  # seconds for which an answer is recent; by default, an owner keeps an idle change set for 10 s
MAX_KNOWN = 50_000  # maximum number of change sets whose newest answer, or newest hint, is remembered


async def publish_task(js: JetStream, subjects: Subjects, key: ChangeSetKey) -> bool:
    """Publish a task for `key`, unless it has a task. Return whether a task was published.

    The message has no `Nats-Msg-Id`, because the duplicate window would drop tasks that are needed. Raise
    `TransientError` if the task cannot be stored.
    """
    try:
        await js.publish(subjects.task(key), b"")
    except ApiError as error:
        if is_subject_full(error):
            return False
        raise
    return True


async def store_request(
    js: JetStream, subjects: Subjects, request: EnqueueUpdatesRequest, trace: dict[str, str] | None = None
) -> ChangeSetKey:
    """Store a request that a server itself sends. Return its change set, for which the caller publishes a task.

    The updates must fit into the message. The request is decided once, even if it is stored several times. `trace` are
    headers with which the request continues a trace. Raise the errors of `JetStream.publish`.
    """
    key = ChangeSetKey.of(request.workspace_id, request.change_set_id)
    headers, payload = encode(request)
    headers[MESSAGE_ID] = f"{key}.{request.id}"
    await js.publish(subjects.requests(key), payload, headers | (trace or {}))
    return key


async def publish_request(js: JetStream, subjects: Subjects, request: EnqueueUpdatesRequest) -> None:
    """Store a request like `store_request`, and publish the task of its change set. Raise the same errors."""
    await publish_task(js, subjects, await store_request(js, subjects, request))


class TaskPublisher:
    """Publishes the tasks of a client, for any number of requests in flight.

    A publish runs in `group`, so that cancelling one caller does not cancel a publish for which other callers wait.
    """

    def __init__(self, js: JetStream, subjects: Subjects, group: TaskGroup) -> None:
        self._js = js
        self._subjects = subjects
        self._group = group
        self._next: dict[ChangeSetKey, anyio.Event] = {}
        self._running: set[ChangeSetKey] = set()
        self._answered_at: dict[ChangeSetKey, float] = {}
        self._hinted_at: dict[ChangeSetKey, float] = {}
        # Tasks to publish later: the due time (loop time), the change set, and the reply after which no task is needed.
        self._deferred: deque[tuple[float, ChangeSetKey, asyncio.Future[Msg]]] = deque()
        self._watching_deferred = False
        self._usual = 0.0  # moving average of recent answer times, in seconds
        self._loop = asyncio.get_running_loop()

    async def publish(self, key: ChangeSetKey) -> None:
        """Wait until `key` has a task, or until this client gives up, in which case the sweeper publishes the task."""
        await self.start(key).wait()

    def start(self, key: ChangeSetKey) -> anyio.Event:
        """Begin to publish a task for `key`. Return an event that is set when the task is published or given up."""
        done = self._next.get(key)
        if done is None:
            done = self._next[key] = anyio.Event()
            if key not in self._running:
                self._running.add(key)
                self._group.start_soon(self._run, key)
        return done

    def record_answer(self, key: ChangeSetKey, stored_at: float) -> None:
        """Record that an owner of `key` has answered a request that was stored at `stored_at` (loop time)."""
        now = self._loop.time()
        if len(self._answered_at) >= MAX_KNOWN:
            self._answered_at.clear()
        self._answered_at[key] = now
        while self._deferred and _is_answered(self._deferred[0][2]):  # otherwise, the answers would be kept in memory
            self._deferred.popleft()
        self._usual += (min(now - stored_at, PATIENCE_MAX) - self._usual) / 16

    def hint(self, key: ChangeSetKey) -> bool:
        """Send a task ahead of a request, unless an owner of the change set answered recently. Return whether it was
        sent, now or just before another request. It may be lost, and an owner that it wakes may end before the request
        is stored."""
        now = self._loop.time()
        if now - self._answered_at.get(key, -RECENTLY) < RECENTLY:
            return False
        if now - self._hinted_at.get(key, -PATIENCE) >= PATIENCE:
            if len(self._hinted_at) >= MAX_KNOWN:
                self._hinted_at.clear()
            try:
                self._js.connection.publish_soon(self._subjects.task(key), b"", None)
            except RebaserError:
                return False
            self._hinted_at[key] = now
        return True

    def start_unless_answered(self, key: ChangeSetKey, reply: asyncio.Future[Msg], *, hinted: bool = False) -> None:
        """Publish a task for a request whose answer `reply` awaits. `hinted` tells whether a hint preceded the request.

        After a hint, or if an owner of the change set answered recently, the task is published only if the request
        stays unanswered for too long. Otherwise, it is published at once.
        """
        now = self._loop.time()
        if not hinted and now - self._answered_at.get(key, -RECENTLY) >= RECENTLY:
            self.start(key)
            return
        patience = self._usual * USUAL_TIMES
        patience = PATIENCE if patience < PATIENCE else min(patience, PATIENCE_MAX)
        self._deferred.append((now + patience, key, reply))
        if not self._watching_deferred:
            self._watching_deferred = True
            self._group.start_soon(self._publish_deferred)

    async def _publish_deferred(self) -> None:
        while self._deferred:
            await anyio.sleep(PATIENCE)
            now = self._loop.time()
            while self._deferred and self._deferred[0][0] <= now:
                _, key, reply = self._deferred.popleft()
                if not _is_answered(reply):
                    self._answered_at.pop(key, None)
                    self.start(key)
        self._watching_deferred = False

    async def _run(self, key: ChangeSetKey) -> None:
        try:
            while done := self._next.pop(key, None):
                try:
                    await self._publish_until_stored(key)
                finally:
                    done.set()  # even if the client is closed: otherwise, the callers would wait forever
        finally:
            self._running.discard(key)
            if waiting := self._next.pop(key, None):
                waiting.set()

    async def _publish_until_stored(self, key: ChangeSetKey) -> None:
        give_up_at = self._loop.time() + GIVE_UP
        backoff = Backoff(RETRY_MIN, RETRY_MAX)
        while True:
            try:
                await publish_task(self._js, self._subjects, key)
            except RebaserError as error:
                log.for_change_set(key).warning("task_publish_failed", reason=error.message)
                refused = isinstance(error, NotAllowed) or (isinstance(error, ApiError) and is_full(error))
                if refused or self._loop.time() > give_up_at:
                    return
            else:
                return
            await anyio.sleep(backoff.next_delay())


def _is_answered(reply: asyncio.Future[Msg]) -> bool:
    return reply.done() and not reply.cancelled() and reply.exception() is None
