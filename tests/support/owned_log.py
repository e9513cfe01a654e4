"""The log of a change set as an owner uses it: it appends commits, and writes checkpoints."""

import itertools
from collections.abc import Callable

from rebaser.change_set.log import checkpointer
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.settings import Settings
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_core.commit import CheckpointRef, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Update

KEY = ChangeSetKey("ws", "cs")


class Log:
    """The log of a change set, with the calls of an owner."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        inline_max: int = 100_000,
        *,
        history: bool = True,
        key: ChangeSetKey = KEY,
    ) -> None:
        self.history = history
        self.key = key
        self.js = js
        self.subjects = subjects
        self.blobs = open_blobs(None, js, subjects.blobs_bucket)
        self.reader = StateLoader(js, subjects, self.blobs)
        self.inline_max = inline_max
        self.settings = Settings(nats_url="", history_for=0)
        self.now_ms = 1
        self.ids = (f"{id(self)}-{number}" for number in itertools.count())  # ids of commits differ between all owners
        self.commits: CommitLog

    async def load(self) -> "Log":
        self.commits = CommitLog(
            self.js,
            self.subjects,
            self.key,
            await self.reader.load(self.key),
            blobs=self.blobs,
            owner="owner",
            inline_max=self.inline_max,
            retry_window=60,
            history=self.history,
            now_ms=lambda: self.now_ms,
            new_id=lambda: next(self.ids),
        )
        return self

    async def append(self, *updates: Update) -> int:
        async with self.commits.append_lock():
            before = await self.commits.before(updates)
            return await self.commits.append(self.commits.draft(Kind.REBASE, delta=updates, before=before))

    async def write_checkpoint(self) -> CheckpointRef:
        await checkpointer.write(self, self.commits)  # type: ignore[arg-type] # it uses only these parts
        assert self.commits.state.checkpoint is not None
        return self.commits.state.checkpoint

    async def begins_after(self) -> int:
        """Return the sequence of the commit before the oldest one in the log; 0 if nothing was purged."""
        first = await self.js.next(self.subjects.commits_stream, self.subjects.commits(self.key), 1)
        assert first is not None
        commit = self.reader.decode(first.sequence, first.headers, first.data)
        assert commit is not None
        return commit.previous


OpenLog = Callable[[], Log]
