"""Has requests answered whose answer was lost: it is a core NATS message, and goes down with any connection on its way.

Invariant: a request is sent again only when it has left the queue, so that a long queue does not grow by those who
wait in it. The log knows the request by its id, and the new message is answered with the outcome of the first.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import anyio
import structlog
from anyio.abc import TaskGroup

from rebaser_client.jetstream import JetStream
from rebaser_client.sender import Outgoing
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.subjects import Subjects

log = structlog.get_logger(__name__)

PATIENCE = 2.0  # seconds between two looks at the queue of a change set


class Unanswered:
    """Looks in `group`, while there is anything to look for; `again` stores a request once more."""

    def __init__(
        self, js: JetStream, subjects: Subjects, group: TaskGroup, again: Callable[[Outgoing], Awaitable[None]]
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._group = group
        self._again = again
        self._since: dict[Outgoing, float] = {}
        self._looking = False
        self._loop = asyncio.get_running_loop()

    def add(self, request: Outgoing) -> None:
        """Look after a request that was stored."""
        self._since[request] = self._loop.time()
        if not self._looking:
            self._looking = True
            self._group.start_soon(self._look)

    def remove(self, request: Outgoing) -> None:
        """It was answered, or nobody waits any more."""
        self._since.pop(request, None)

    async def _look(self) -> None:
        while self._since:
            await anyio.sleep(PATIENCE)
            overdue: defaultdict[ChangeSetKey, list[Outgoing]] = defaultdict(list)
            until = self._loop.time() - PATIENCE
            for request, since in self._since.items():
                if since <= until:
                    overdue[request.key].append(request)
            for key, requests in overdue.items():
                try:
                    await self._look_at(key, requests)
                except (RebaserError, TimeoutError) as error:
                    log.debug(
                        "answer_look_failed", workspace=key.workspace, change_set=key.change_set, reason=str(error)
                    )
        self._looking = False

    async def _look_at(self, key: ChangeSetKey, requests: list[Outgoing]) -> None:
        # Requests leave a queue in its order, so its first message tells of all.
        first = await self._js.next(self._subjects.requests_stream, self._subjects.requests(key), 1)
        for request in requests:
            if request in self._since and (first is None or request.sequence < first.sequence):
                log.info("answer_lost", workspace=key.workspace, change_set=key.change_set, seq=request.sequence)
                request.copy()
                await self._again(request)
                if request in self._since:
                    self._since[request] = self._loop.time()
