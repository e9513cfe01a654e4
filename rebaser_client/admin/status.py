"""Reads the overview that `rebaser status` shows: servers, change sets with their queues, streams.

Everything is read from NATS; nothing is stored.
"""

from dataclasses import dataclass

import anyio

from rebaser_client.admin.servers import ServerInfo, UpdateInfo, ping
from rebaser_client.admin.stream_usage import (
    DurabilityStatus,
    StreamStatus,
    TasksStatus,
    durability_of,
    read_streams,
    read_tasks,
)
from rebaser_client.jetstream import ApiError, Connection, JetStream
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND
from rebaser_client.log.commits import CommitReader
from rebaser_core.errors import TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import is_deleted
from rebaser_core.streams.subjects import Subjects

MAX_CONCURRENT_READS = 64  # logs


@dataclass(frozen=True, slots=True)
class ChangeSetStatus:
    """The status of one change set.

    - `pending`: requests in its queue. `has_task`: whether it has a task.
    - `last_commit`: the log sequence of its newest commit. `covers`: the log sequence up to which derived values are
      correct.
    - `debt`: whether a DVU is due. `update`: the DVU that is running, if it is a long one.
    - `problem`: why the newest message of its log cannot be read, or empty.
    """

    workspace: str
    change_set: str
    pending: int
    has_task: bool
    last_commit: int
    covers: int
    debt: bool
    update: UpdateInfo | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """An installation. `durability` and `tasks` are None if the streams or the tasks consumer do not exist."""

    servers: list[ServerInfo]
    change_sets: list[ChangeSetStatus]
    streams: list[StreamStatus]
    durability: DurabilityStatus | None
    tasks: TasksStatus | None = None


async def read_overview(
    connection: Connection, js: JetStream, subjects: Subjects, reader: CommitReader, workspace: str | None
) -> Overview:
    """Read the overview of one workspace, or of all."""
    servers = await ping(connection, subjects)
    pending = await key_counts(js, subjects, subjects.requests_stream, "requests", workspace)
    tasks = await key_counts(js, subjects, subjects.tasks_stream, "tasks", workspace)
    commits = await key_counts(js, subjects, subjects.commits_stream, "commits", workspace)
    updates = {(update.workspace, update.change_set): update for server in servers for update in server.updates}
    rows: dict[ChangeSetKey, ChangeSetStatus] = {}
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT_READS)

    async def read(key: ChangeSetKey) -> None:
        async with limiter:
            stored = await js.last(subjects.commits_stream, subjects.commits(key)) if key in commits else None
            last, covers, debt, problem = 0, 0, False, ""
            if stored is not None:
                if key not in pending and key not in tasks and is_deleted(stored.headers):
                    return
                last = stored.sequence
                try:
                    commit = reader.decode(last, stored.headers, stored.data)
                except (TransientError, UnsupportedVersion) as error:  # still show the other change sets
                    commit, problem = None, error.message
                if commit is not None:
                    covers = last if commit.covers is None else commit.covers
                    debt = commit.debt > 0
            update = updates.get((key.workspace, key.change_set))
            rows[key] = ChangeSetStatus(
                key.workspace, key.change_set, pending.get(key, 0), key in tasks, last, covers, debt, update, problem
            )

    async with anyio.create_task_group() as group:
        for key in {*pending, *tasks, *commits}:
            group.start_soon(read, key)
    streams = await read_streams(js, subjects)
    durability, queue = durability_of(streams), await read_tasks(js, subjects)
    return Overview(servers, [rows[key] for key in sorted(rows)], streams, durability, queue)


async def key_counts(
    js: JetStream, subjects: Subjects, stream: str, kind: str, workspace: str | None = None
) -> dict[ChangeSetKey, int]:
    """Count the messages of each change set in a stream whose subjects have `kind`, of one workspace or of all.

    Empty if the stream does not exist.
    """
    pattern = f"{subjects.root}.{kind}.{workspace or '*'}.>"
    counts: dict[ChangeSetKey, int] = {}
    try:
        by_subject = await js.subject_counts(stream, pattern)
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return counts  # no server has run yet
        raise
    for subject, count in by_subject.items():
        try:
            counts[subjects.parse(subject)[1]] = count
        except UnprocessableError:
            continue  # not written by Rebaser
    return counts
