"""Waits until derived values are up to date as of a commit.

A follower reads the commits of the change set from its log, so waiting does not depend on a single server.

Invariant: one follower for each change set serves all waiters of this client, and ends when no waiter remains.

A new change set may inherit derived values that are not up to date. Servers do not compute them until the change set
receives a request, so the follower calls `wake_owner`, which sends one.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from rebaser_client.backoff import Backoff
from rebaser_client.log.commits import CommitReader
from rebaser_client.logs import get_logger
from rebaser_client.nats.errors import ClientClosedError, NotAllowed
from rebaser_core.commit import Commit, Kind
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey

log = get_logger(__name__)

RETRY_MIN, RETRY_MAX = 0.2, 1.0  # seconds between attempts to follow a log, before jitter


@dataclass(eq=False)
class _Follower:
    """The task that follows one log, and its waiters.

    `covers` is the log sequence as of which derived values are up to date. `waiters` maps the event of each waiter to
    the log sequence for which the waiter waits. `woken` is true once `wake_owner` was called.
    """

    covers: int = 0
    waiters: dict[anyio.Event, int] = field(default_factory=dict)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    woken: bool = False
    ended: bool = False
    denied: NotAllowed | None = None

    def record(self, commit: Commit) -> None:
        self.covers = max(self.covers, commit.sequence if commit.covers is None else commit.covers)
        for event, sequence in self.waiters.items():
            if sequence <= self.covers:
                event.set()


class CoverageWaiter:
    """Waits until derived values are up to date as of given commits. The followers run in `group`.

    `wake_owner` makes a server compute the values that a change set inherited. It may raise a `RebaserError`.
    """

    def __init__(
        self, reader: CommitReader, group: TaskGroup, wake_owner: Callable[[ChangeSetKey], Awaitable[object]]
    ) -> None:
        self._reader = reader
        self._group = group
        self._wake_owner = wake_owner
        self._followers: dict[ChangeSetKey, _Follower] = {}

    async def wait(self, key: ChangeSetKey, commit: int) -> None:
        """Wait until the derived values of `key` are up to date as of log sequence `commit`.

        There is no timeout; to stop waiting, cancel the call. Raise `NotAllowed` if NATS does not let the client read
        the log, and `ClientClosedError` if the client is closed meanwhile.
        """
        follower = self._followers.get(key)
        if follower is None:
            follower = self._followers[key] = _Follower()
            self._group.start_soon(self._follow, key, follower)
        elif commit <= follower.covers:
            return
        reached = anyio.Event()
        follower.waiters[reached] = commit
        try:
            await reached.wait()
            if follower.denied is not None and commit > follower.covers:
                raise follower.denied
            if follower.ended and commit > follower.covers:
                raise ClientClosedError
        finally:
            del follower.waiters[reached]
            if not follower.waiters:
                self._followers.pop(key, None)
                follower.scope.cancel()

    async def _follow(self, key: ChangeSetKey, follower: _Follower) -> None:
        try:
            with follower.scope:
                await self._read(key, follower)
        finally:
            follower.ended = True
            for event in follower.waiters:
                event.set()

    async def _read(self, key: ChangeSetKey, follower: _Follower) -> None:
        backoff = Backoff(RETRY_MIN, RETRY_MAX)
        while True:
            try:
                last = await self._reader.last(key)
                if last is not None:
                    await self._record(key, follower, last)
                backoff.reset()
                async for commit in self._reader.follow(key, 0 if last is None else last.sequence):
                    await self._record(key, follower, commit)
            except NotAllowed as error:
                self._followers.pop(key, None)
                follower.denied = error
                return
            except RebaserError as error:
                log.for_change_set(key).warning("follow_failed", reason=str(error))
            await anyio.sleep(backoff.next_delay())

    async def _record(self, key: ChangeSetKey, follower: _Follower, commit: Commit) -> None:
        follower.record(commit)
        if commit.kind is not Kind.CREATE or follower.woken or all(event.is_set() for event in follower.waiters):
            return
        try:
            await self._wake_owner(key)
        except NotAllowed as error:  # keep waiting, because another client may send a request to the change set
            log.for_change_set(key).info("branch_use_not_allowed", reason=str(error))
        follower.woken = True
