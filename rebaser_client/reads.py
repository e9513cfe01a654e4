"""The half of the client that changes nothing: values, definitions, commits, progress, status."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from anyio.abc import TaskGroup

from rebaser_client.admin.ack_stats import TaskAcks, watch_task_acks
from rebaser_client.admin.status import Overview, key_counts, read_overview
from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.coverage import CoverageWaiter
from rebaser_client.log.entries import Entry, EntryKind, EntryReplay, EntryStart, read_entries
from rebaser_client.log.reader import LogReader
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey, check_token
from rebaser_core.limits import Limits
from rebaser_core.messages import DvuProgress, decode
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.selection import Item, select_items, select_values
from rebaser_core.subjects import Subjects
from rebaser_core.values import Value


class ReadOperations:
    """Part of `RebaserClient`."""

    def __init__(
        self, connection: Connection, subjects: Subjects, blobs: BlobStore, limits: Limits, group: TaskGroup
    ) -> None:
        self._connection = connection
        self._js = JetStream(connection)
        self._subjects = subjects
        self._limits = limits
        self._reader = LogReader(self._js, subjects, blobs)
        self._coverage = CoverageWaiter(self._reader, group)

    async def exists(self, workspace: str, change_set: str) -> bool:
        """Whether anything was ever asked of the change set."""
        key, subjects = ChangeSetKey.of(workspace, change_set), self._subjects
        with translate_missing_stream():
            # In this order: a request leaves the queue after its commit.
            waiting = await self._js.next(subjects.requests_stream, subjects.requests(key), 1)
            return (
                waiting is not None or await self._js.last(subjects.commits_stream, subjects.commits(key)) is not None
            )

    async def change_sets(self, workspace: str | None = None) -> list[ChangeSetKey]:
        """All that anything was ever asked of, in order; of one workspace, or of all."""
        if workspace is not None:
            check_token(workspace, "workspace")
        js, subjects = self._js, self._subjects
        with translate_missing_stream():
            waiting = await key_counts(js, subjects, subjects.requests_stream, "requests", workspace)
            written = await key_counts(js, subjects, subjects.commits_stream, "commits", workspace)
        return sorted({*waiting, *written})

    async def value(self, workspace: str, change_set: str, id_: str) -> Value | None:
        """The value at `id_` as of the newest commit; None if there is none. Costs as much as reading all."""
        state = await self.state(workspace, change_set)
        return state.value(id_, state.stale())

    async def values(self, workspace: str, change_set: str, match: str | None = None) -> dict[str, Value]:
        """All values by id, as of the newest commit; empty for a change set that nobody wrote to.

        With `match` those whose id matches the pattern (`cart/*/price`; `cart/**` for all that begin with `cart/`).
        """
        return select_values(await self.state(workspace, change_set), match)

    async def items(
        self, workspace: str, change_set: str, match: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[Item]:
        """Values with their definitions, in the order of their ids, as of the newest commit; `match` as in `values`.

        A page at a time: `limit` says how many, `after` is the last id of the page before. Each page is as of its own
        newest commit; who wants all of one commit takes `state`, once.
        """
        return select_items(await self.state(workspace, change_set), match, after=after, limit=limit)

    async def state(self, workspace: str, change_set: str) -> ChangeSetState:
        """The folded state as of the newest commit: values with their definitions, and what is owed."""
        with translate_missing_stream():
            return (await self._reader.load(ChangeSetKey.of(workspace, change_set))).state

    async def watch(self, workspace: str, change_set: str, *, after: int | None = None) -> AsyncGenerator[Commit, None]:
        """Commits as they are appended, their deltas included: those behind log sequence `after`, or from now on.

        Commits below the checkpoint before the current one are purged; a watcher that comes later begins behind them.
        """
        key = ChangeSetKey.of(workspace, change_set)
        with translate_missing_stream():
            if after is None:
                last = await self._reader.last(key)
                after = 0 if last is None else last.sequence
            async with aclosing(self._reader.follow(key, after)) as commits:
                async for commit in commits:
                    yield await self._reader.with_delta(commit)

    async def watch_progress(
        self, workspace: str | None = None, change_set: str | None = None
    ) -> AsyncGenerator[DvuProgress, None]:
        """How far updates are that take some seconds or more; of one change set, of a workspace, or of all.

        Best effort: told now and then by who computes, and kept nowhere. That one has ended is told by its commit.
        """
        names = (workspace, "workspace"), (change_set, "change set")
        tokens = ["*" if name is None else check_token(name, what) for name, what in names]
        async with self._connection.subscribe(self._subjects.progress(*tokens)) as told:
            async for message in told:
                try:
                    yield decode(message.headers, message.data, self._limits, expect=DvuProgress)
                except RebaserError:
                    continue  # of a newer server, or none of ours
            self._connection.check_open()

    async def wait_covered(
        self,
        workspace: str,
        change_set: str,
        commit: int,
        *,
        timeout: float = 60.0,  # noqa: ASYNC109 - part of the client's vocabulary
    ) -> None:
        """Return when derived values are true as of the commit at log sequence `commit`; raises `TimeoutError`."""
        self._connection.check_open()
        with anyio.fail_after(timeout):
            await self._coverage.wait(ChangeSetKey.of(workspace, change_set), commit)

    async def entries(
        self,
        kind: EntryKind,
        workspace: str | None = None,
        change_set: str | None = None,
        *,
        start: EntryStart = "all",
        follow: bool = False,
        replay: EntryReplay = "instant",
    ) -> AsyncGenerator[Entry, None]:
        """What a stream holds (commits, requests that wait, dead letters), as `rebaser tail` shows it; see there."""
        with translate_missing_stream():
            async for entry in read_entries(
                self._js, self._subjects, kind, workspace, change_set, start=start, follow=follow, replay=replay
            ):
                yield entry

    async def status(self, workspace: str | None = None) -> Overview:
        """Servers that answer, change sets with what they wait for, and the streams."""
        if workspace is not None:
            check_token(workspace, "workspace")
        return await read_overview(self._connection, self._js, self._subjects, self._reader, workspace)

    async def task_acks(self, seconds: float) -> TaskAcks:
        """Listen for `seconds` to what NATS tells about finished tasks; the setting `ack_sample` has it told."""
        with translate_missing_stream():
            return await watch_task_acks(self._js, self._subjects, seconds)
