"""Sends a request again if its answer was lost. Answers are core NATS messages, so they may be lost with the
connection.

Invariant: a request is sent again only after it has left the queue, so callers that wait for a long queue do not make
it longer. Servers find the id of the request in the log, and answer the new message with the outcome of the first
message.

One check of a change set's queue serves all its waiting requests, so many requests cost no more than one. A check runs
when a request has waited for `PATIENCE` seconds, and after a reconnect. While no request leaves the queue, the checks
become less and less frequent.
"""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from rebaser_client.jetstream import JetStream
from rebaser_client.logs import get_logger
from rebaser_client.requests.sender import OutgoingRequest
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

log = get_logger(__name__)

PATIENCE = 2.0  # seconds that a request waits before its queue is checked
PAUSE_MAX = 16.0  # the maximum number of seconds between two checks of one queue


class _Queue:
    """The unanswered requests of one change set, oldest first, with the time at which each request was stored.

    `due` is the time of the next check. `pause` is the number of seconds from one check to the next.
    """

    __slots__ = ("due", "pause", "stored_at")

    def __init__(self, due: float) -> None:
        self.stored_at: dict[OutgoingRequest, float] = {}
        self.due = due
        self.pause = PATIENCE


class Resender:
    """Checks the queues of unanswered requests, and sends a request again if it has left its queue without an answer.

    The checks run in a task of `group` while there are unanswered requests. To send a request again, the task calls
    `send_again`.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        group: TaskGroup,
        send_again: Callable[[OutgoingRequest], Awaitable[None]],
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._group = group
        self._send_again = send_again
        self._queues: dict[ChangeSetKey, _Queue] = {}
        self._running = False
        self._reconnected = anyio.Event()
        self._loop = asyncio.get_running_loop()
        js.connection.on_reconnect(self._check_soon)  # stays registered as long as the connection exists

    def add(self, request: OutgoingRequest) -> None:
        """Begin to watch a request that was just stored."""
        now = self._loop.time()
        queue = self._queues.get(request.key)
        if queue is None:
            queue = self._queues[request.key] = _Queue(now + PATIENCE)
        queue.stored_at[request] = now
        if not self._running:
            self._running = True
            self._reconnected = anyio.Event()
            self._group.start_soon(self._run)

    def remove(self, request: OutgoingRequest) -> None:
        """Stop watching a request that was answered, or whose caller is no longer waiting."""
        queue = self._queues.get(request.key)
        if queue is not None and queue.stored_at.pop(request, None) is not None and not queue.stored_at:
            del self._queues[request.key]

    def _check_soon(self) -> None:
        self._reconnected.set()

    async def _run(self) -> None:
        while self._queues:
            with anyio.move_on_after(PATIENCE):
                await self._reconnected.wait()
            patience = PATIENCE
            if self._reconnected.is_set():  # answers that were sent before this reconnect are lost
                self._reconnected = anyio.Event()
                patience = 0.0
                for queue in self._queues.values():
                    queue.due, queue.pause = 0.0, PATIENCE
            now = self._loop.time()
            async with anyio.create_task_group() as checks:
                for key, queue in self._queues.items():
                    stored_by = now - patience
                    if queue.due <= now and next(iter(queue.stored_at.values())) <= stored_by:
                        checks.start_soon(self._check_queue, key, queue, stored_by)
        self._running = False

    async def _check_queue(self, key: ChangeSetKey, queue: _Queue, stored_by: float) -> None:
        """Send again the requests that were stored at or before `stored_by` (loop time) and have left the queue."""
        try:
            # Requests with a lower sequence than the first message in the queue have left it.
            first = await self._js.next(self._subjects.requests_stream, self._subjects.requests(key), 1)
            dequeued: list[OutgoingRequest] = []
            for request in [request for request, time in queue.stored_at.items() if time <= stored_by]:
                if first is None or request.sequence < first.sequence:
                    dequeued.append(request)
                else:
                    request.note_undecided(self._loop.time())
            # No jitter is needed, because each queue is checked only once every `PATIENCE` seconds.
            queue.pause = PATIENCE if dequeued else min(queue.pause * 2, PAUSE_MAX)
            for request in dequeued:
                if request in queue.stored_at:  # the request is still unanswered
                    await self._resend(queue, request)
        except (RebaserError, TimeoutError) as error:
            log.for_change_set(key).debug("queue_check_failed", reason=str(error))
        queue.due = self._loop.time() + queue.pause

    async def _resend(self, queue: _Queue, request: OutgoingRequest) -> None:
        log.for_change_set(request.key).info("answer_lost", seq=request.sequence)
        if self._loop.time() > request.repeat_until:
            self.remove(request)  # servers may have forgotten the outcome, and would then apply the request again
            return
        request.mark_as_copy()
        await self._send_again(request)
        if request in queue.stored_at:
            queue.stored_at[request] = self._loop.time()
