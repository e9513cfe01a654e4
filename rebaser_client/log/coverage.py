"""Waits until a DVU has covered a commit, whoever owns the change set by then: it follows the log.

Invariant: what one follower of a change set sees serves every waiter of this client, and it lives as long as they do.
"""

from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from rebaser_client.errors import ClientClosedError, NotAllowed
from rebaser_client.log.reader import LogReader
from rebaser_client.logs import get_logger
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey

log = get_logger(__name__)

RETRY = 0.2  # seconds


@dataclass(eq=False)
class _Follower:
    covers: int = 0
    waiters: dict[anyio.Event, int] = field(default_factory=dict)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: bool = False
    denied: NotAllowed | None = None

    def saw(self, commit: Commit) -> None:
        self.covers = max(self.covers, commit.sequence if commit.covers is None else commit.covers)
        for event, wanted in self.waiters.items():
            if wanted <= self.covers:
                event.set()


class CoverageWaiter:
    """Followers run in `group`."""

    def __init__(self, reader: LogReader, group: TaskGroup) -> None:
        self._reader = reader
        self._group = group
        self._followers: dict[ChangeSetKey, _Follower] = {}

    async def wait(self, key: ChangeSetKey, commit: int) -> None:
        """Return when derived values are true as of log sequence `commit`. Waits for ever; cancel it."""
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
        while True:
            try:
                last = await self._reader.last(key)
                if last is not None:
                    follower.saw(last)
                async for commit in self._reader.follow(key, 0 if last is None else last.sequence):
                    follower.saw(commit)
            except NotAllowed as error:
                self._followers.pop(key, None)
                follower.denied = error
                return
            except RebaserError as error:
                log.warning("follow_failed", workspace=key.workspace, change_set=key.change_set, reason=str(error))
            await anyio.sleep(RETRY)
