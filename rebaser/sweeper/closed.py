"""Sends requests to delete change sets that were closed long ago.

A client could send the same requests. The owners decide them in order, like all other requests.

Invariant: a change set is deleted only if its log has no commit after the one that the sweeper saw. A change set that
is reopened in time is therefore kept.
"""

from collections.abc import Mapping

import anyio
import structlog

from rebaser.runtime.concurrency import run_concurrently
from rebaser.sweeper.debts import ClosedSince
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.errors import is_full
from rebaser_client.nats.errors import NotAllowed
from rebaser_client.requests.task_publisher import publish_request
from rebaser_core.commit import BranchStatus, Marking
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest
from rebaser_core.streams.subjects import Subjects

log = structlog.get_logger(__name__)

CONCURRENT = 8  # number of requests that are sent concurrently
ASK_AGAIN = 3600.0  # seconds until a deletion is requested again, because the first request may have been lost
AUTHOR = "rebaser"


class ClosedChangeSets:
    """Sends a request to delete a closed change set `closed_for` seconds after its newest commit; never if `closed_for`
    is 0."""

    def __init__(self, js: JetStream, subjects: Subjects, closed_for: float) -> None:
        self._js = js
        self._subjects = subjects
        self._closed_for = closed_for
        # By name of the change set: its newest commit when its deletion was last requested, and when that was.
        self._asked: dict[str, tuple[int, float]] = {}

    async def delete(self, closed: Mapping[str, ClosedSince], now_ns: int) -> int:
        """Request the deletion of each of `closed` that is old enough at `now_ns` (Unix ns); return their number.

        NATS may refuse a request because the queue is full, or because servers may not send requests. The next sweep
        then tries again. Raise `TransientError` if NATS does not answer.
        """
        if not self._closed_for:
            return 0
        before_ns = now_ns - self._closed_for * 1e9
        due = {name: one.sequence for name, one in closed.items() if one.stored_ns <= before_ns}
        since = anyio.current_time() - ASK_AGAIN
        self._asked = {name: one for name, one in self._asked.items() if due.get(name) == one[0] and one[1] > since}
        names = due.keys() - self._asked.keys()

        async def ask(name: str) -> None:
            if await self._ask(name, due[name]):
                self._asked[name] = due[name], anyio.current_time()

        await run_concurrently(names, ask, CONCURRENT)
        if names:
            log.info("deletions_requested", count=len(names), example=min(names))
        return len(names)

    async def _ask(self, name: str, sequence: int) -> bool:
        """Send a request to delete the change set `name` if `sequence` is still its newest commit. Return False if NATS
        refused the request for lack of room or permission."""
        try:
            key = ChangeSetKey.of(*name.split("."))
        except UnprocessableError:
            return True  # the name is not valid, so no server can own the change set
        request = EnqueueUpdatesRequest(
            RequestId(f"closed-{sequence}"),
            key.workspace,
            key.change_set,
            None,
            author=AUTHOR,
            message=f"closed for {self._closed_for:g} s",
            expect_at=sequence,
            action=Marking(status=BranchStatus.DELETED),
        )
        try:
            await publish_request(self._js, self._subjects, request)
        except (ApiError, NotAllowed) as error:
            if isinstance(error, ApiError) and not is_full(error):
                raise
            log.warning("deletion_refused", workspace=key.workspace, change_set=key.change_set, reason=error.message)
            return False
        return True
