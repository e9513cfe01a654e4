"""Reads the logs of change sets, blobs and references for the data source.

Invariant: `commits` always returns the same commits for the same range of log sequences. If part of the range was
purged, it raises an error, unless the option `failOnDataLoss` is false.
"""

from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Self, TypeVar

from rebaser_client.admin.status import key_counts
from rebaser_client.blobs import CollectableBlobs, open_collectable
from rebaser_client.garbage import Reference, ReferenceReader
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.branches import BranchConflict, BranchDiff, BranchInfo, BranchReader
from rebaser_client.log.commits import FOREIGN, RESOLUTION
from rebaser_client.log.entries import Entry, read_entries
from rebaser_client.log.positions import At, PositionPurged
from rebaser_client.log.reader import StateLoader
from rebaser_client.requests.sender import translate_missing_stream
from rebaser_client.spark.options import SourceOptions
from rebaser_core.blobs.garbage import StoredBlob
from rebaser_core.commit import Commit
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects

T = TypeVar("T")


class Logs:
    """Reads the data that `options` select, over one connection to NATS. Create an instance with `connect`."""

    def __init__(
        self,
        options: SourceOptions,
        js: JetStream,
        subjects: Subjects,
        reader: StateLoader,
        blobs: CollectableBlobs,
    ) -> None:
        self._options = options
        self._js = js
        self._subjects = subjects
        self._reader = reader
        self._workspace = f"{subjects.root}.commits.{options.workspace}.*"
        self._blobs = blobs
        self._references = ReferenceReader(js, subjects, blobs)
        self._branches = BranchReader(js, subjects, reader, self._loader)

    @classmethod
    @asynccontextmanager
    async def connect(cls, options: SourceOptions) -> AsyncIterator[Self]:
        """Connect to NATS. Raise the errors of `RebaserClient.connect`.

        The other methods raise `NotReadyError` if the streams do not exist.
        """
        subjects = Subjects(options.prefix)
        async with Connection.connect(
            options.nats,
            name="rebaser-spark",
            inbox_prefix=options.inbox_prefix,
            **options.access(),
        ) as connection:
            js = JetStream(connection)
            blobs = open_collectable(options.blobs, js, subjects.blobs_bucket)
            yield cls(options, js, subjects, StateLoader(js, subjects, blobs), blobs)

    async def stored(self) -> list[StoredBlob]:
        """Return all stored blobs, including the blobs in the trash."""
        with translate_missing_stream():
            return [blob async for blob in self._blobs.stored()]

    async def newest(self) -> int:
        """Return the log sequence of the newest commit of all workspaces."""
        with translate_missing_stream():
            return await self._references.last()

    async def queued_references(self) -> list[Reference]:
        """Return the references to blobs in the dead letters and the queued requests of all workspaces."""
        with translate_missing_stream():
            return list((await self._references.queued()).values())

    async def commit_references(self, after: int, until: int | None) -> list[Reference]:
        """Return the references to blobs in the commits of all workspaces.

        Only commits after log sequence `after` up to `until` are read. None as `until` means the end of the log.
        """
        with translate_missing_stream():
            return list((await self._references.commits(after, until)).values())

    async def keys(self) -> list[ChangeSetKey]:
        """Return the change sets that the options select; by default, all change sets of the workspace that have a
        log."""
        named = self._options.keys()
        if named is not None:
            return named
        with translate_missing_stream():  # a missing stream is an error, but an empty stream is not
            await self._js.stream_info(self._subjects.commits_stream)
        counts = await key_counts(
            self._js, self._subjects, self._subjects.commits_stream, "commits", self._options.workspace
        )
        return sorted(counts)

    async def last(self) -> int:
        """Return the log sequence of the newest commit of the selected change sets; 0 if there is no commit."""
        named = self._options.keys()
        subjects = [self._workspace] if named is None else [self._subjects.commits(key) for key in named]
        with translate_missing_stream():
            newest = [await self._js.last(self._subjects.commits_stream, subject) for subject in subjects]
        return max((message.sequence for message in newest if message is not None), default=0)

    async def cut(self, at: At | None) -> int | None:
        """Return the log sequence at which all change sets are read for the position `at`; None if `at` is None.

        Raise `UnprocessableError` with code `no_such_position` for a sequence that the stream has not reached.
        """
        if at is None:
            return None
        stream = self._subjects.commits_stream
        with translate_missing_stream():
            newest = (await self._js.stream_info(stream)).last_sequence
            if isinstance(at, datetime):
                following = await self._js.next_since(stream, self._workspace, at + RESOLUTION)
                return newest if following is None else following.sequence - 1
        if at > newest:
            text = f"there is no commit {at} yet: the newest commit of all logs is {newest}"
            raise UnprocessableError(text, code="no_such_position")
        return at

    async def state(self, key: ChangeSetKey, at: int | None = None) -> ChangeSetState | None:
        """Return the state of `key` at log sequence `at` (None: the newest commit).

        Return None if the change set did not exist at that position, or if the position was purged and the option
        `failOnDataLoss` is false.
        """
        if at is not None and await self._if_kept(self._reader.newest_message(key, at)) is None:
            return None
        loaded = await self._if_kept(self._reader.load(key, at))
        return None if loaded is None else loaded.state

    async def change_sets(self, keys: Iterable[ChangeSetKey] | None, at: int | None = None) -> list[BranchInfo]:
        """Return the change sets `keys` (None: all of the workspace) as of log sequence `at` (None: the newest commit).

        Change sets that did not exist at that position are left out.
        """
        if keys is None and at is None:
            with translate_missing_stream():
                return await self._branches.all(self._options.workspace)
        found = [await self._branch(key, at) for key in (await self.keys() if keys is None else keys)]
        return [info for info in found if info is not None]

    async def changes(self, key: ChangeSetKey, at: int | None = None) -> BranchDiff | None:
        """Return the changes of the branch `key`, and the definitions in its target, as of log sequence `at` (None: the
        newest commit).

        Return None if `key` was not a branch at that position, or if the position was purged and the option
        `failOnDataLoss` is false.
        """
        info = await self._branch(key, at)
        if info is None or info.target is None:
            return None
        return await self._if_kept(self._branches.diff(key, at, at))

    async def conflicts(
        self, key: ChangeSetKey, at: int | None = None
    ) -> tuple[BranchInfo, tuple[BranchConflict, ...]] | None:
        """Return the branch `key` with its conflicts as of log sequence `at` (None: the newest commit).

        Return None in the same cases as `changes`.
        """
        info = await self._branch(key, at)
        if info is None or info.target is None:
            return None
        return await self._if_kept(self._branches.conflicts(key, at))

    async def _branch(self, key: ChangeSetKey, at: int | None) -> BranchInfo | None:
        return await self._if_kept(self._branches.one(key, at, at))

    async def _if_kept(self, read: Awaitable[T]) -> T | None:
        """Return the result of `read`; None if the position was purged and the option `failOnDataLoss` is false."""
        try:
            with translate_missing_stream():
                return await read
        except PositionPurged as error:
            if not self._options.fail_on_data_loss:
                return None
            text = f'{error.message}; leave out such change sets with .option("failOnDataLoss", "false")'
            raise UnprocessableError(text, code=error.code) from None

    async def _loader(self) -> StateLoader:
        return self._reader

    async def commits(
        self, keys: Iterable[ChangeSetKey] | None, after: int, until: int
    ) -> list[tuple[ChangeSetKey, Commit]]:
        """Return the commits of `keys` (None: all of the workspace) after log sequence `after` up to `until`.

        The deltas of these commits, and the definitions that they replaced, are loaded.

        Raise `TransientError` if a commit cannot be read, or if commits after `after` were purged. If `after` is 0, or
        if the option `failOnDataLoss` is false, purged commits are left out instead.
        """
        commits: list[tuple[ChangeSetKey, Commit]] = []
        for name in [None] if keys is None else [key.change_set for key in keys]:
            previous: dict[ChangeSetKey, int] = {}
            async with aclosing(
                read_entries(self._js, self._subjects, "commits", self._options.workspace, name, start=after + 1)
            ) as entries:
                async for entry in entries:
                    if entry.sequence <= until and entry.key is not None:
                        commit = self._commit(entry, previous.get(entry.key, after), after)
                        previous[entry.key] = entry.sequence
                        if commit is not None:
                            loaded = await self._reader.with_before(await self._reader.with_delta(commit))
                            commits.append((entry.key, loaded))
                    if entry.sequence >= until:
                        break
        return commits

    def _commit(self, entry: Entry, previous: int, after: int) -> Commit | None:
        """Return the commit in `entry`, or None if it is not a commit.

        `previous` is the log sequence of the message before `entry` in the same log. Raise `TransientError` if commits
        between them were purged.
        """
        if not isinstance(entry.content, Commit):
            if entry.problem is None or entry.problem.code == FOREIGN:
                return None
            raise TransientError(f"commit {entry.sequence} cannot be read: {entry.problem.message}")
        if after and entry.content.previous > previous and self._options.fail_on_data_loss:
            raise TransientError(
                f"commits of {entry.key} after log sequence {previous} were purged: begin again (a stream needs a new "
                'checkpointLocation, a table a later "start"), or skip them with .option("failOnDataLoss", "false")'
            )
        return replace(entry.content, sequence=entry.sequence)
