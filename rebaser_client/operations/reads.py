"""The operations of the client that only read: values, definitions, commits, progress, status.

Invariant: loading a state needs NumPy, which is imported in a thread when the first state is read.
"""

import sys
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from rebaser_client.admin.ack_stats import TaskAcks, watch_task_acks
from rebaser_client.admin.explanations import ExplainedValue, Explainer, Explanation
from rebaser_client.admin.fleet_watch import FleetWatch
from rebaser_client.admin.status import Overview, key_counts, read_overview
from rebaser_client.admin.stream_usage import StreamStatus, read_streams
from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.blame import Blame, BlameReader
from rebaser_client.log.branches import BranchReader
from rebaser_client.log.changes import Diff, HistoryStatus, LogEntry, LogHistory, ShownCommit, check_limit
from rebaser_client.log.commits import CommitReader
from rebaser_client.log.coverage import CoverageWaiter
from rebaser_client.log.entries import Entry, EntryKind, EntryReplay, EntryStart, read_entries
from rebaser_client.log.positions import At
from rebaser_client.notebook import Values
from rebaser_client.refs import Ref
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError
from rebaser_core.explain.values import explain_value
from rebaser_core.ids import ChangeSetKey, RequestId, check_token
from rebaser_core.limits import Limits
from rebaser_core.messages import DvuProgress, decode
from rebaser_core.shell import command
from rebaser_core.state.selection import Item, select_items, select_values
from rebaser_core.streams.subjects import Subjects
from rebaser_core.values import Value

if TYPE_CHECKING:
    from rebaser_client.log.reader import StateLoader
    from rebaser_core.state.change_set import ChangeSetState

T = TypeVar("T")

LOADER = "rebaser_client.log.reader"  # the module that loads states


class ReadOperations:
    """The operations that only read. `RebaserClient` inherits them."""

    def __init__(
        self, connection: Connection, subjects: Subjects, blobs: BlobStore, limits: Limits, group: TaskGroup
    ) -> None:
        self._connection = connection
        self._js = JetStream(connection)
        self._subjects = subjects
        self._limits = limits
        self._blobs = blobs
        self._reader = CommitReader(self._js, subjects, blobs)
        self._loader: StateLoader | None = None
        self._history = LogHistory(self._reader, self._state_loader)
        self._blames = BlameReader(self._reader, self._state_loader)
        self._branches = BranchReader(self._js, subjects, self._reader, self._state_loader)
        self._coverage = CoverageWaiter(self._reader, group, self._wake_owner)

    async def enqueue_updates(self, *args: Any, **options: Any) -> RequestId:
        """Send a request. `RebaserClient` implements this."""
        raise NotImplementedError

    async def _wake_owner(self, key: ChangeSetKey) -> None:
        """Send a request without updates, which makes a server load the change set."""
        await self.enqueue_updates(key.workspace, key.change_set, ())

    async def exists(self, workspace: str, change_set: str) -> bool:
        """Return whether the change set has ever received a request."""
        key, subjects = ChangeSetKey.of(workspace, change_set), self._subjects
        with translate_missing_stream():
            # The queue is read before the log, because a request leaves the queue only after its commit is stored.
            waiting = await self._js.next(subjects.requests_stream, subjects.requests(key), 1)
            return (
                waiting is not None or await self._js.last(subjects.commits_stream, subjects.commits(key)) is not None
            )

    async def change_sets(self, workspace: str | None = None) -> list[ChangeSetKey]:
        """Return the change sets that have ever received a request, sorted by name, including deleted change sets.

        If `workspace` is None, the change sets of all workspaces are returned.
        """
        if workspace is not None:
            check_token(workspace, "workspace")
        js, subjects = self._js, self._subjects
        with translate_missing_stream():
            waiting = await key_counts(js, subjects, subjects.requests_stream, "requests", workspace)
            committed = await key_counts(js, subjects, subjects.commits_stream, "commits", workspace)
        return sorted({*waiting, *committed})

    async def value(self, workspace: str, change_set: str, id_: str, *, at: At | None = None) -> Value | None:
        """Return the value of `id_`; None if it does not exist. `at` has the same meaning as in `state`.

        If the value is derived, and derived values are not up to date, the call reads all values.
        """
        state = await self.state(workspace, change_set, at=at, ids=(id_,))
        return state.value(id_, state.stale())

    async def get(self, workspace: str, change_set: str, ref: Ref[T], *, at: At | None = None) -> T:
        """Return the value that `ref` refers to, in the type of `ref`. `at` has the same meaning as in `state`.

        Raise `ValueNotReady` if the value does not exist, is not up to date, is an error, or is unset. Raise
        `UnprocessableError`, with code `wrong_type`, if the value has another type.
        """
        return ref.of(await self.value(workspace, change_set, ref.id, at=at))

    async def values(
        self, workspace: str, change_set: str, match: str | None = None, *, at: At | None = None
    ) -> Values:
        """Return the values by id. The result is empty for a change set without commits.

        The result is a dictionary that can also be converted with `to_arrow` and `to_pandas`. If `match` is given,
        return only the values whose ids match this pattern, for example `cart/*/price`. The pattern `cart/**` matches
        all ids that begin with `cart/`. `at` has the same meaning as in `state`.
        """
        return Values(select_values(await self.state(workspace, change_set, at=at), match))

    async def items(
        self,
        workspace: str,
        change_set: str,
        match: str | None = None,
        *,
        after: str = "",
        limit: int | None = None,
        at: At | None = None,
    ) -> list[Item]:
        """Return a page of values with their definitions, sorted by id.

        `limit` is the maximum size of the page, and `after` is the last id of the previous page. `match` has the same
        meaning as in `values`, and `at` as in `state`. Without `at`, each page is read as of the commit that is the
        newest at that moment. To read all pages as of one commit, pass a log sequence as `at`, or call `state` once.
        """
        check_limit(limit)
        return select_items(await self.state(workspace, change_set, at=at), match, after=after, limit=limit)

    async def state(
        self, workspace: str, change_set: str, *, at: At | None = None, ids: Collection[str] | None = None
    ) -> "ChangeSetState":
        """Return the state of the change set: its values, and their definitions.

        If `ids` is given, only these values are read, which is faster. Then only these values, their definitions,
        `last` and `status` are correct in the result.

        `at` is the position whose state is read, a log sequence or a time with its time zone; None means the newest
        commit. The result is the state after the newest commit at or before the position. Its `last` is the log
        sequence of that commit, or 0 if there was no commit. Derived values have the results that were stored at that
        position; `stale()` returns the ids of those that were not up to date.

        Raise `PositionPurged` if the position is no longer readable, and `UnprocessableError` with code
        `no_such_position` for a sequence that does not exist yet.
        """
        with translate_missing_stream():
            key = ChangeSetKey.of(workspace, change_set)
            loader = await self._state_loader()
            return (await loader.load(key, at)).state if ids is None else await loader.load_values(key, ids, at)

    async def log(
        self, workspace: str, change_set: str, id_: str | None = None, *, at: At | None = None
    ) -> AsyncGenerator[LogEntry, None]:
        """Yield the commits of the change set, newest first, down to the oldest commit in the log.

        The first commit is the newest one at or before the position `at`; None means the newest of all. If `id_` is
        given, only commits that define or remove this value are yielded, back to the creation of the change set.
        Commits are read from NATS as the caller takes them: the newest few one by one, older commits in pages.

        Raise `PositionPurged`, and `UnprocessableError` with code `no_such_position`, like `state`.
        """
        with translate_missing_stream():
            async with aclosing(self._history.log(ChangeSetKey.of(workspace, change_set), id_, at=at)) as entries:
                async for entry in entries:
                    yield entry

    async def show(self, workspace: str, change_set: str, at: At | None = None) -> ShownCommit:
        """Return the newest commit at or before the position `at`, with the changes of each of its requests.

        If `at` is None, return the newest commit of all.

        Raise `PositionPurged` if that commit is no longer readable, and `UnprocessableError`, with code
        `no_such_position`, if there was no commit at or before `at`.
        """
        with translate_missing_stream():
            return await self._history.show(ChangeSetKey.of(workspace, change_set), at)

    async def blame(
        self, workspace: str, change_set: str, *ids: str, at: At | None = None, deep: bool = False
    ) -> dict[str, Blame]:
        """Return who last defined each of the values `ids`, by id. Ids that do not exist are left out.

        If a branch was applied, the result is the edit in the branch; `copies` of the result has the apply.

        If `deep` is true, the result for an id is about the value that was defined last among this value and all values
        on which it depends. This reads all values.
        """
        with translate_missing_stream():
            return await self._blames.blame(ChangeSetKey.of(workspace, change_set), ids, at, deep=deep)

    async def diff(
        self,
        workspace: str,
        change_set: str,
        other: str | None = None,
        *,
        at: At | None = None,
        other_at: At | None = None,
        derived: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> Diff:
        """Compare the definitions of the change set with the definitions of `other` (by default, the same change set).

        `at` is the position of `change_set`, and `other_at` is the position of `other`; None means the newest commit.
        If `derived` is true, the results of derived values that have the same definition are compared, too. To compare
        two positions of one change set, only the commits between them are read, unless some of these commits do not
        record the definitions that they replaced. In that case, both states are read. `after` and `limit` have the same
        meaning as in `changes`.

        Raise `PositionPurged`, and `UnprocessableError` with code `no_such_position`, like `state`.
        """
        key = ChangeSetKey.of(workspace, change_set)
        second = key if other is None else ChangeSetKey.of(workspace, other)
        with translate_missing_stream():
            return await self._history.diff_page(
                *(key, at, second, other_at), derived=derived, after=after, limit=limit
            )

    async def history_status(self, workspace: str, change_set: str) -> HistoryStatus:
        """Return the size of the history of the change set, and its oldest readable position."""
        with translate_missing_stream():
            return await self._history.status(ChangeSetKey.of(workspace, change_set))

    async def _state_loader(self) -> "StateLoader":
        if self._loader is None:
            if LOADER not in sys.modules:
                await to_thread.run_sync(import_module, LOADER)
            from rebaser_client.log.reader import StateLoader  # noqa: PLC0415 - see the module docstring

            self._loader = self._loader or StateLoader(self._js, self._subjects, self._blobs)
        return self._loader

    async def watch(self, workspace: str, change_set: str, *, after: int | None = None) -> AsyncGenerator[Commit, None]:
        """Yield the commits after log sequence `after`, with their deltas, and then each new commit as it is appended.

        If `after` is None, only new commits are yielded. If commits after `after` were purged, the iteration begins
        with the oldest remaining commit.

        Three commits replace all values of earlier commits: one of the kind `create`, one that marks the change set as
        deleted, and one that opens it again after its deletion. The new values are not in the delta of such a commit,
        so read them again. Another change set may be created under the name of a deleted one.

        Raise `TransientError` if a commit or its blob is damaged or cannot be read, and with code `stream_lost` if the
        stream was lost or recreated; `UnsupportedVersion` for a commit of a newer version; `NotReadyError` if there are
        no streams; `NotAllowed` if NATS does not let the client read the log; `ClientClosedError` after `close`.
        """
        key = ChangeSetKey.of(workspace, change_set)
        with translate_missing_stream():
            if after is None:
                newest = await self._reader.newest_message(key)  # may be a message that is not a commit
                after = 0 if newest is None else newest.sequence
            async with aclosing(self._reader.follow(key, after)) as commits:
                async for commit in commits:
                    yield await self._reader.with_delta(commit)

    async def watch_progress(
        self, workspace: str | None = None, change_set: str | None = None
    ) -> AsyncGenerator[DvuProgress, None]:
        """Yield the progress of updates of derived values (DVUs) that take seconds or longer.

        The DVUs are those of one change set, of one workspace, or of all workspaces. Messages may be missed: servers
        publish the progress from time to time, and NATS does not store it. Only the commit of a DVU shows that the DVU
        has ended.
        """
        names = (workspace, "workspace"), (change_set, "change set")
        tokens = ["*" if name is None else check_token(name, what) for name, what in names]
        async with self._connection.subscribe(self._subjects.progress(*tokens)) as messages:
            async for message in messages:
                try:
                    yield decode(message.headers, message.data, self._limits, expect=DvuProgress)
                except RebaserError:
                    continue  # a newer server sent this message, or it is not from Rebaser
            self._connection.check_open()

    async def wait_covered(
        self,
        workspace: str,
        change_set: str,
        commit: int,
        *,
        timeout: float = 60.0,  # noqa: ASYNC109 - as in the client's other calls
    ) -> None:
        """Wait until derived values are up to date as of log sequence `commit`.

        Raise `TimeoutError` if that takes longer than `timeout` seconds.

        Servers do not compute the values that a branch inherited from its parent until the branch receives a request.
        If the branch has never received one, this call sends a request without updates. A client that is not allowed to
        send requests waits until another client sends one.
        """
        self._connection.check_open()
        key = ChangeSetKey.of(workspace, change_set)
        try:
            with anyio.fail_after(timeout):
                await self._coverage.wait(key, commit)
        except TimeoutError:
            raise TimeoutError(
                f"after {timeout:g} s, the derived values of {key.workspace}/{key.change_set} are not up to date as of "
                f"commit {commit}; `{command('status', key.workspace)}` shows whether a server is computing them"
            ) from None

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
        """Yield the messages of a stream: commits, queued requests, or dead letters, as `rebaser tail` shows them.

        See `rebaser_client.log.entries.read_entries` for the arguments.
        """
        with translate_missing_stream():
            async for entry in read_entries(
                self._js, self._subjects, kind, workspace, change_set, start=start, follow=follow, replay=replay
            ):
                yield entry

    async def status(self, workspace: str | None = None) -> Overview:
        """Return an overview of the servers that answer, the change sets and their queues, and the streams."""
        if workspace is not None:
            check_token(workspace, "workspace")
        return await read_overview(self._connection, self._js, self._subjects, self._reader, workspace)

    async def streams(self) -> list[StreamStatus]:
        """Return the usage and the limits of the streams that exist."""
        return await read_streams(self._js, self._subjects)

    def fleet(self, workspace: str | None = None) -> FleetWatch:
        """Return an object that observes the servers, and the change sets that have work to do.

        If `workspace` is given, only its change sets are observed.

            async with client.fleet() as fleet:
                view = await fleet.look()  # repeat this call; rates are measured since the previous call
        """
        if workspace is not None:
            check_token(workspace, "workspace")
        return FleetWatch(self._js, self._subjects, workspace)

    async def explain(self, workspace: str, change_set: str) -> Explanation:
        """Return the reasons why requests or derived values of the change set wait, the most likely reason first.

        If nothing waits, the only reason has the code `quiet`. If the change set does not exist, the only reason has
        the code `unknown`. No values are loaded.
        """
        key = ChangeSetKey.of(workspace, change_set)
        explainer = Explainer(self._js, self._subjects, self._reader, self._blobs, self._branches.one)
        with translate_missing_stream():
            return await explainer.explain(key)

    async def explain_value(self, workspace: str, change_set: str, id_: str) -> ExplainedValue | None:
        """Explain a value; return None if it does not exist.

        The explanation has the definition and the inputs of the value, the values that depend on it, and who last
        defined it. If the value is stale or an error, the explanation also has the path to the value that is the cause.
        This call reads all values.
        """
        key = ChangeSetKey.of(workspace, change_set)
        state = await self.state(workspace, change_set)
        found = await to_thread.run_sync(explain_value, state, id_)
        if found is None:
            return None
        origin = found.origin if found.origin != id_ else ""
        with translate_missing_stream():
            blames = await self._blames.find(key, state, [id_, origin])
        return ExplainedValue(found, blames.get(id_), blames.get(origin))

    async def task_acks(self, seconds: float) -> TaskAcks:
        """Collect the ack samples that NATS publishes about finished tasks, for `seconds` seconds.

        NATS publishes samples only if the servers have the setting `ack_sample`.
        """
        with translate_missing_stream():
            return await watch_task_acks(self._js, self._subjects, seconds)
