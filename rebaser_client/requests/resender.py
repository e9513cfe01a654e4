"""Has requests answered whose answer was lost: it is a core NATS message, and goes down with any connection on its way.

Invariant: a request is sent again only when it has left the queue, so that a long queue does not grow by those who
wait in it. The log knows the request by its id, and the new message is answered with the outcome of the first.

A change set is looked at when a request has waited for `PATIENCE` or the connection was replaced, then ever more seldom
while its requests still queue: with a slow server, what this costs does not depend on how many wait.
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
from rebaser_core.subjects import Subjects

log = get_logger(__name__)

PATIENCE = 2.0  # seconds that a request waits before its queue is looked at
PAUSE_MAX = 16.0  # seconds between looks at one queue


class _Queue:
    """Requests of one change set, in the order in which they were stored, each with the time of that."""

    __slots__ = ("due", "pause", "stored_at")

    def __init__(self, due: float) -> None:
        self.stored_at: dict[OutgoingRequest, float] = {}
        self.due = due
        self.pause = PATIENCE


class Resender:
    """Looks in `group`, while there is anything to look for; `again` stores a request once more."""

    def __init__(
        self, js: JetStream, subjects: Subjects, group: TaskGroup, again: Callable[[OutgoingRequest], Awaitable[None]]
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._group = group
        self._again = again
        self._queues: dict[ChangeSetKey, _Queue] = {}
        self._running = False
        self._reconnected = anyio.Event()
        self._loop = asyncio.get_running_loop()
        js.connection.on_reconnect(self._check_soon)  # for as long as the connection lives

    def add(self, request: OutgoingRequest) -> None:
        """Look after a request that was stored."""
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
        """It was answered, or nobody waits any more."""
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
            if self._reconnected.is_set():  # what was said meanwhile was said to nobody
                self._reconnected = anyio.Event()
                patience = 0.0
                for queue in self._queues.values():
                    queue.due, queue.pause = 0.0, PATIENCE
            now = self._loop.time()
            async with anyio.create_task_group() as looks:
                for key, queue in self._queues.items():
                    stored_by = now - patience
                    if queue.due <= now and next(iter(queue.stored_at.values())) <= stored_by:
                        looks.start_soon(self._check_queue, key, queue, stored_by)
        self._running = False

    async def _check_queue(self, key: ChangeSetKey, queue: _Queue, stored_by: float) -> None:
        """Send what was stored until `stored_by` (of the loop's clock) and has left the queue since."""
        try:
            # Its first message tells of all: what has a lower sequence has left.
            first = await self._js.next(self._subjects.requests_stream, self._subjects.requests(key), 1)
            left: list[OutgoingRequest] = []
            for request in [request for request, since in queue.stored_at.items() if since <= stored_by]:
                if first is None or request.sequence < first.sequence:
                    left.append(request)
                else:
                    request.note_undecided(self._loop.time())
            queue.pause = PATIENCE if left else min(queue.pause * 2, PAUSE_MAX)
            for request in left:
                if request in queue.stored_at:
                    await self._send_again(queue, request)
        except (RebaserError, TimeoutError) as error:
            log.debug("answer_look_failed", workspace=key.workspace, change_set=key.change_set, reason=str(error))
        queue.due = self._loop.time() + queue.pause

    async def _send_again(self, queue: _Queue, request: OutgoingRequest) -> None:
        key = request.key
        log.info("answer_lost", workspace=key.workspace, change_set=key.change_set, seq=request.sequence)
        if self._loop.time() > request.repeat_until:
            self.remove(request)  # servers may have forgotten it, and would apply it again
            return
        request.mark_as_copy()
        await self._again(request)
        if request in queue.stored_at:
            queue.stored_at[request] = self._loop.time()
