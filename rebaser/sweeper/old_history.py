"""Purges history that owners leave in the log, because an owner purges only when it writes a checkpoint.

Without the sweeper, a change set that is no longer edited would keep its history forever. The histories of many such
change sets would fill the stream of all logs, and no server could append a commit any more.

While the stream has room, a round through all logs purges commits that are older than the history that is kept. While
the stream is crowded (see `rebaser.change_set.log.checkpointer`), all history is purged, beginning with the logs that
have the most commits, until the stream is no longer crowded.

Invariants: the choice of messages to purge depends only on the streams, not on any server's clock. The second newest
checkpoint and the log after it always remain, so purging cannot interfere with an owner that is starting, or with
another server that sweeps.
"""

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog
from anyio import lowlevel

from rebaser.change_set.log.checkpointer import is_crowded
from rebaser.runtime.concurrency import run_concurrently
from rebaser_client.jetstream import JetStream
from rebaser_client.jetstream.infos import StreamInfo
from rebaser_client.jetstream.messages import StoredMessage
from rebaser_client.log.commits import CommitReader
from rebaser_client.log.positions import MAX_SEQUENCE
from rebaser_core.commit import Commit
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.history import read_after
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import is_deleted
from rebaser_core.streams.subjects import Subjects

log = structlog.get_logger(__name__)

ROUNDS = 64  # number of rounds that the sweeper makes within the time for which history is kept
MAX_INTERVAL = timedelta(hours=1)  # maximum time between rounds
CONCURRENT = 8  # number of logs that are examined concurrently
CHUNKS, CROWDED_CHUNKS = 16, 128  # chunks of `CONCURRENT` logs that one sweep examines: normally, and while crowded


class OldHistory:
    """Purges old history of one installation. `history_for` is the number of seconds for which history is kept."""

    def __init__(self, js: JetStream, subjects: Subjects, reader: CommitReader, history_for: float) -> None:
        self._js = js
        self._subjects = subjects
        self._reader = reader
        self._history_for = history_for
        interval = timedelta(seconds=min(history_for, 1e6)) / ROUNDS
        self._interval = min(interval, MAX_INTERVAL) if interval else MAX_INTERVAL
        self._created = ""
        self._crowded = False  # whether the current round is for a crowded stream
        self._warned = False  # whether a warning was logged that the stream is crowded although no history is left
        # The logs that this round has yet to examine: the name `ws.cs` and the number of messages of each.
        self._queue: deque[tuple[str, int]] = deque()
        self._next_round: datetime | None = None
        # The logs that have nothing to purge until they grow: the number of messages of each, by its name `ws.cs`.
        self._settled: dict[str, int] = {}

    async def purge(self) -> int:
        """Continue the current round, or begin one that is due. Return the number of purged messages.

        The cost of a call is bounded, even if there are many logs. Raise `TransientError` if NATS does not answer.
        """
        info = await self._info()
        if not info.last_time:
            return 0
        now = datetime.fromisoformat(info.last_time).astimezone(UTC)
        crowded = is_crowded(info)
        due = crowded or self._next_round is None or now >= self._next_round
        if crowded != self._crowded or (due and not self._queue):
            await self._begin_round(now, crowded=crowded)
        begin = None if crowded else _before(now, self._history_for)
        purged = 0
        for _ in range(CROWDED_CHUNKS if crowded else CHUNKS):
            if not self._queue:
                break
            chunk = [self._queue.popleft() for _ in range(min(CONCURRENT, len(self._queue)))]
            purged += await self._purge_logs(chunk, begin)
            if crowded and not is_crowded(info := await self._info()):
                break
        if purged:
            log.info("history_purged", messages=purged, crowded=crowded, bytes=info.bytes)
        if crowded and not self._queue and not self._warned and is_crowded(info):
            log.warning("log_stream_crowded", bytes=info.bytes, max_bytes=info.config.get("max_bytes"))
        self._warned = crowded and (self._warned or not self._queue)
        return purged

    async def _info(self) -> StreamInfo:
        info = await self._js.stream_info(self._subjects.commits_stream)
        if info.created != self._created:
            self._created, self._next_round = info.created, None
            self._queue.clear()
            self._settled.clear()
        return info

    async def _begin_round(self, now: datetime, *, crowded: bool) -> None:
        head = f"{self._subjects.root}.commits."
        found = await self._js.subject_counts(self._subjects.commits_stream, f"{head}*.*")
        await lowlevel.checkpoint()
        counts = {subject[len(head) :]: count for subject, count in found.items()}
        self._settled = {name: count for name, count in self._settled.items() if counts.get(name) == count}
        logs = [(name, count) for name, count in counts.items() if name not in self._settled]
        if crowded:
            logs.sort(key=lambda one: one[1], reverse=True)
        self._queue, self._crowded, self._next_round = deque(logs), crowded, now + self._interval

    async def _purge_logs(self, logs: Sequence[tuple[str, int]], begin: datetime | None) -> int:
        """Purge the messages of `logs` that are not needed for the history since `begin`. If `begin` is None, no
        history is needed."""
        purged = 0

        async def purge(one: tuple[str, int]) -> None:
            nonlocal purged
            name, count = one
            try:
                key = ChangeSetKey.of(*name.split("."))
            except UnprocessableError:
                return  # the name is not valid, so no server can own the change set
            removed, settled = await self._purge_log(key, begin)
            purged += removed
            if settled:
                self._settled[name] = count - removed

        await run_concurrently(logs, purge, CONCURRENT)
        return purged

    async def _purge_log(self, key: ChangeSetKey, begin: datetime | None) -> tuple[int, bool]:
        """Purge messages of the log of `key`; see `_purge_logs`. Return the number of purged messages, and whether
        nothing is left to purge until the log grows."""
        stream, subject = self._subjects.commits_stream, self._subjects.commits(key)
        at_most = through = await self._unneeded(key, await self._js.last(stream, subject))
        if begin is not None and through:
            through = min(through, await self._needed_since(key, begin))
        settled = through == at_most
        first = await self._js.next(stream, subject, 1) if through else None
        if first is None or first.sequence > through:
            return 0, settled
        return await self._js.purge(stream, subject, sequence=through + 1), settled

    async def _unneeded(self, key: ChangeSetKey, message: StoredMessage | None) -> int:
        """Return the log sequence up to which no message is needed if no history is kept. `message` is the newest
        message of the log.

        The log after the second newest checkpoint is still needed by readers that started from that checkpoint. If a
        commit created or deleted the change set, no reader needs messages that are older than that commit.
        """
        newest = self._commit(key, message)
        if newest is None or message is None:
            return 0
        after = read_after(newest.checkpoint, newest.created_by)
        if newest.created_by or is_deleted(message.headers):
            return after
        # The newest checkpoint contains the state after the commit at `after`, which refers to the previous checkpoint.
        covered = self._commit(key, await self._js.get(self._subjects.commits_stream, after)) if after else None
        return 0 if covered is None else read_after(covered.checkpoint, covered.created_by)

    async def _needed_since(self, key: ChangeSetKey, begin: datetime) -> int:
        """Return the log sequence of the checkpoint from which the state at `begin` is read.

        Return 0 if that checkpoint is unknown, so that nothing is purged. If no commit was stored since `begin`, the
        newest checkpoint suffices, and the result is `MAX_SEQUENCE`.
        """
        stream = self._subjects.commits_stream
        following = await self._js.next_since(stream, self._subjects.commits(key), begin)
        if following is None:
            return MAX_SEQUENCE
        first = self._commit(key, following)
        if first is None or not first.previous:
            return 0
        commit = self._commit(key, await self._js.get(stream, first.previous))
        return 0 if commit is None else read_after(commit.checkpoint, commit.created_by)

    def _commit(self, key: ChangeSetKey, message: StoredMessage | None) -> Commit | None:
        """Return the commit in `message`; None if `message` is not a readable commit of `key`."""
        if message is None or message.subject != self._subjects.commits(key):
            return None
        try:
            return self._reader.decode(message.sequence, message.headers, message.data)
        except RebaserError:
            return None


def _before(now: datetime, seconds: float) -> datetime:
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=now.tzinfo)
