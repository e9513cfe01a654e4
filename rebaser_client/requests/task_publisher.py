"""Publishes tasks for a client, one at a time per change set, however many requests are in flight.

Invariant: a call of `wake` is served by a publish that *begins* after the call, because only that one comes after the
caller's request. Calls that arrive while one is under way share the next.

Where a reply is awaited, the reply itself shows that the change set has an owner. So while a change set is being
answered, its task is published only for requests that are not answered within `PATIENCE`.

What cannot be woken, because there is no room for a task or no answer for long, is left to the sweeper.
"""

import asyncio
from collections import deque

import anyio
from anyio.abc import TaskGroup

from rebaser_client.errors import NotAllowed
from rebaser_client.jetstream import ApiError, JetStream, Msg
from rebaser_client.jetstream.errors import is_full
from rebaser_client.logs import get_logger
from rebaser_client.requests.tasks import publish_task
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.subjects import Subjects

log = get_logger(__name__)

PAUSE_MIN, PAUSE_MAX = 0.05, 1.0  # seconds between tries
GIVE_UP = 30.0  # seconds; a cluster that lost a node takes some ten to elect
PATIENCE = 0.02  # seconds that an owner who was there a moment ago has to answer
A_MOMENT = 1.0  # seconds
MAX_KNOWN = 10_000  # change sets


class Waker:
    """Runs its publishes in `group`, so that a caller who is cancelled takes nobody's wake-up along."""

    def __init__(self, js: JetStream, subjects: Subjects, group: TaskGroup) -> None:
        self._js = js
        self._subjects = subjects
        self._group = group
        self._next: dict[ChangeSetKey, anyio.Event] = {}
        self._running: set[ChangeSetKey] = set()
        self._answered: dict[ChangeSetKey, float] = {}
        self._hopeful: deque[tuple[float, ChangeSetKey, asyncio.Future[Msg]]] = deque()
        self._hoping = False
        self._loop = asyncio.get_running_loop()

    async def wake(self, key: ChangeSetKey) -> None:
        """Return when `key` has a task, or is left to the sweeper."""
        await self.start(key).wait()

    def start(self, key: ChangeSetKey) -> anyio.Event:
        """Begin to wake `key`; what is returned is set when that is done."""
        done = self._next.get(key)
        if done is None:
            done = self._next[key] = anyio.Event()
            if key not in self._running:
                self._running.add(key)
                self._group.start_soon(self._run, key)
        return done

    def answered(self, key: ChangeSetKey) -> None:
        """Note that `key` had an owner just now."""
        if len(self._answered) >= MAX_KNOWN:
            self._answered.clear()
        self._answered[key] = self._loop.time()

    def start_unless_answered(self, key: ChangeSetKey, reply: asyncio.Future[Msg]) -> None:
        """Wake `key` for a request whose answer will be in `reply`: at once, or when an owner turns out to be gone."""
        now = self._loop.time()
        if now - self._answered.get(key, -A_MOMENT) >= A_MOMENT:
            self.start(key)
            return
        self._hopeful.append((now + PATIENCE, key, reply))
        if not self._hoping:
            self._hoping = True
            self._group.start_soon(self._lose_hope)

    async def _lose_hope(self) -> None:
        while self._hopeful:
            await anyio.sleep(PATIENCE)
            now = self._loop.time()
            while self._hopeful and self._hopeful[0][0] <= now:
                _, key, reply = self._hopeful.popleft()
                if not reply.done() or reply.cancelled() or reply.exception() is not None:  # who gave up got no answer
                    self._answered.pop(key, None)
                    self.start(key)
        self._hoping = False

    async def _run(self, key: ChangeSetKey) -> None:
        try:
            while done := self._next.pop(key, None):
                try:
                    await self._publish(key)
                finally:
                    done.set()  # where the client is closed, too: nothing more is to come
        finally:
            self._running.discard(key)
            if left := self._next.pop(key, None):
                left.set()

    async def _publish(self, key: ChangeSetKey) -> None:
        pause, started = PAUSE_MIN, self._loop.time()
        while True:
            try:
                await publish_task(self._js, self._subjects, key)
            except RebaserError as error:
                log.warning(
                    "task_publish_failed", workspace=key.workspace, change_set=key.change_set, reason=error.message
                )
                refused = isinstance(error, NotAllowed) or (isinstance(error, ApiError) and is_full(error))
                if refused or self._loop.time() - started > GIVE_UP:
                    return
            else:
                return
            await anyio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)
