"""Observes the activity of an installation, for `rebaser top`.

Invariants: a call of `look` reads the numbers of queued requests and tasks of each change set, and the headers of
commits: in the first call, of the newest commit of each change set; later, of new commits, or, if there are many, again
of the newest commit of each change set. It hardly reads any payload of commits (see `HeadReader`). Between two calls,
nothing is read, and NATS holds nothing for the observer.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio

from rebaser_client.admin.fleet import FleetState, FleetView, LogHead
from rebaser_client.admin.servers import PATIENCE, ServerInfo, UpdateInfo, holders_of, ping
from rebaser_client.admin.status import key_counts
from rebaser_client.admin.stream_usage import TasksStatus, read_tasks
from rebaser_client.jetstream import ApiError, JetStream, StreamInfo
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND
from rebaser_client.log.branches import BranchInfo
from rebaser_client.log.heads import HeadReader
from rebaser_client.task_groups import flat_task_group
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

COUNTS_SHARE = 20  # counting, which is slow if many change sets have requests, takes at most 1/20 of the time


class FleetWatch:
    """Observes the activity of one workspace of an installation, or of all workspaces.

    Use this class as an async context manager, although there is nothing to release at present.
    """

    def __init__(self, js: JetStream, subjects: Subjects, workspace: str | None) -> None:
        self._js = js
        self._subjects = subjects
        self._workspace = workspace
        self._state = FleetState()
        self._heads = HeadReader(js, subjects, workspace, LogHead.of)
        self._looking = anyio.Lock()  # calls of `look` wait for each other
        self._reading = anyio.Lock()  # without it, two concurrent calls would count the same commits twice
        self._looked: float | None = None
        self._answered: frozenset[str] = frozenset()  # the ids of the servers that answered the last look
        self._requests: StreamInfo | None = None
        self._counted = -1.0  # the value of `time.monotonic` until which the last counts are recent enough
        self._pending: dict[ChangeSetKey, int] = {}
        self._tasks: dict[ChangeSetKey, int] = {}
        self._updates: Mapping[ChangeSetKey, UpdateInfo] = {}
        self._view: FleetView | None = None  # the result of the last call of `look`

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def look(self, asked: ChangeSetKey | None = None) -> FleetView:
        """Return the current activity. Rates are averages since the previous call; in the first call, they are 0.

        If `asked` is given, the servers also report on this change set (`ServerInfo.about`). The call takes at least
        half a second, which is the time that servers have to answer. If the servers that answered do not have all
        delivered tasks, it takes up to two seconds, or until all servers that answered the previous call have answered.
        Calls wait for each other.

        Raise `RebaserError` if NATS does not answer or refuses a call. The next call then tries again.
        """
        async with self._looking:
            return await self._look(asked)

    async def look_early(self, most: int) -> FleetView | None:
        """Return the result of the last call of `look` with all commits since then. Return None if there are none that
        an earlier call did not return, or if more than `most` came since the last call of either method: a later call
        returns them, once fewer come.

        Only commits are read, so a call that returns None costs one request to NATS. The next call of `look` counts the
        commits, too. Another task may call this while `look` waits for servers. Raise `RebaserError` as `look` does.
        """
        async with self._reading:
            if self._view is None or self._looked is None or not await self._read_commits(most):
                return None
            now = time.monotonic()
            seconds = now - self._looked
            rows, commits, total = self._state.look_early(now, seconds, self._pending, self._tasks, self._updates)
            rate = commits / seconds if seconds else 0.0
            return replace(self._view, at=time.time(), change_sets=rows, total=total, commits_per_second=rate)

    def change_sets(self) -> list[BranchInfo]:
        """Return each change set that has a log, including deleted change sets, in no particular order.

        The result is as of the last call of `look` or `look_early`. Nothing is requested from NATS.
        """
        return self._state.change_sets()

    async def _look(self, asked: ChangeSetKey | None) -> FleetView:
        found: dict[str, Any] = {}

        async def ask(name: str, question: Any) -> None:
            found[name] = await question()

        subjects = self._subjects
        async with flat_task_group() as group:
            group.start_soon(ask, "servers", partial(self._servers, asked))
            group.start_soon(ask, "requests", partial(self._info, subjects.requests_stream))
            group.start_soon(ask, "dlq", partial(self._info, subjects.dlq_stream))
            group.start_soon(self._count)
        servers, tasks = found["servers"]
        async with self._reading:
            await self._read_commits()  # last, so that what came while servers answered the ping is included
            self._view = self._seen(servers, found["requests"], found["dlq"], tasks)
        return self._view

    def _seen(
        self, servers: list[ServerInfo], requests: StreamInfo | None, dlq: StreamInfo | None, tasks: TasksStatus | None
    ) -> FleetView:
        now = time.monotonic()
        seconds = 0.0 if self._looked is None else now - self._looked
        self._updates = {
            ChangeSetKey(update.workspace, update.change_set): update
            for server in servers
            for update in server.updates
            if self._workspace in (None, update.workspace)
        }
        rows, commits, total = self._state.look(now, seconds, self._pending, self._tasks, self._updates)
        before, self._requests, self._looked = self._requests, requests, now
        arrived = 0
        if before is not None and requests is not None and before.created == requests.created:
            arrived = requests.last_sequence - before.last_sequence
        return FleetView(
            time.time(),
            seconds,
            servers,
            rows,
            total,
            requests=0 if requests is None else requests.messages,
            oldest_request=_age(requests),
            requests_per_second=arrived / seconds if seconds else 0.0,
            commits_per_second=commits / seconds if seconds else 0.0,
            dead_letters=0 if dlq is None else dlq.messages,
            tasks=tasks,
        )

    async def _servers(self, asked: ChangeSetKey | None) -> tuple[list[ServerInfo], TasksStatus | None]:
        tasks = await read_tasks(self._js, self._subjects)
        enough = holders_of(0 if tasks is None else tasks.in_flight, self._answered)
        servers = await ping(self._js.connection, self._subjects, key=asked, patience=PATIENCE, enough=enough)
        self._answered = frozenset([server.id for server in servers])
        return servers, tasks

    async def _info(self, stream: str) -> StreamInfo | None:
        try:
            return await self._js.stream_info(stream)
        except ApiError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None  # no server has run yet
            raise

    async def _count(self) -> None:
        """Count the requests and the tasks of each change set."""
        began = time.monotonic()
        if began < self._counted:
            return
        js, subjects = self._js, self._subjects
        self._pending = await key_counts(js, subjects, subjects.requests_stream, "requests", self._workspace)
        self._tasks = await key_counts(js, subjects, subjects.tasks_stream, "tasks", self._workspace)
        ended = time.monotonic()
        self._counted = ended + (ended - began) * (COUNTS_SHARE - 1)

    async def _read_commits(self, most: int | None = None) -> bool:
        """Read the new commits, unless there are more than `most`. Return whether any were read."""
        try:
            found = await self._heads.read(most)
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            self._state.begin({})  # no server has run yet, or the stream was deleted and may be restored
            self._heads = HeadReader(self._js, self._subjects, self._workspace, LogHead.of)
            return False
        if found.anew:
            self._state.begin(found.heads)
            return True
        for key, head in found.heads.items():
            self._state.committed(key, head, found.commits[key])
        return bool(found.heads)


def _age(requests: StreamInfo | None) -> float:
    """Return the age of the oldest message in a stream, in seconds by the clock of NATS; 0 for an empty stream."""
    if requests is None or not requests.first_time or not requests.now:
        return 0.0
    return max(
        (datetime.fromisoformat(requests.now) - datetime.fromisoformat(requests.first_time)).total_seconds(), 0.0
    )
