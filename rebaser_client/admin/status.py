"""Reads the overview for `rebaser status`: servers, change sets with their queues, and streams.

All facts are read from NATS, and nothing is stored.
"""

from dataclasses import dataclass, replace

import anyio

from rebaser_client.admin.servers import PATIENCE, ServerInfo, UpdateInfo, holders_of, ping
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
from rebaser_client.log.heads import Head, read_heads
from rebaser_client.notebook import html_table
from rebaser_core.errors import TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import peek, read_covers, read_summary, read_sweep_headers
from rebaser_core.streams.subjects import Subjects

MAX_CONCURRENT_READS = 64  # maximum number of logs that are read at the same time


@dataclass(frozen=True, slots=True)
class ChangeSetStatus:
    """The status of one change set.

    - `pending`: the number of requests in its queue. `has_task`: whether it has a task.
    - `last_commit`: the log sequence of its newest commit. `covers`: the log sequence as of which derived values are up
      to date.
    - `debt`: whether derived values have to be updated. `update`: the update that has been running for a long time, if
      any.
    - `owner`: the id of the server that stored the newest commit; empty if that is unknown. `errors`: the number of
      values whose newest result is an error, even if the result is stale; None if the newest commit does not contain
      this number.
    - `problem`: the reason why the newest message of its log cannot be read; empty if the message can be read. A
      damaged payload is not detected, because only headers are read; `rebaser explain` detects it.
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
    owner: str = ""
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """The status of an installation.

    `durability` is None if the streams do not exist, and `tasks` is None if the tasks consumer does not exist.
    """

    servers: list[ServerInfo]
    change_sets: list[ChangeSetStatus]
    streams: list[StreamStatus]
    durability: DurabilityStatus | None
    tasks: TasksStatus | None = None

    def _repr_html_(self) -> str:
        rows = (
            (one.workspace, one.change_set, one.pending, one.last_commit, "due" if one.debt else "", one.problem)
            for one in self.change_sets
        )
        caption = f"{len(self.servers):,} servers answer; {len(self.change_sets):,} change sets"
        head = "workspace", "change set", "queued", "last commit", "update", "problem"
        return html_table(caption, head, rows, len(self.change_sets))


async def read_overview(
    connection: Connection, js: JetStream, subjects: Subjects, reader: CommitReader, workspace: str | None
) -> Overview:
    """Read the overview of one workspace, or of all workspaces."""
    queue = await read_tasks(js, subjects)
    delivered = 0 if queue is None else queue.in_flight
    servers = await ping(connection, subjects, patience=PATIENCE, enough=holders_of(delivered))
    pending = await key_counts(js, subjects, subjects.requests_stream, "requests", workspace)
    tasks = await key_counts(js, subjects, subjects.tasks_stream, "tasks", workspace)
    try:
        heads = await read_heads(js, subjects, workspace)
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        heads = {}  # no server has run yet
    updates = {(update.workspace, update.change_set): update for server in servers for update in server.updates}
    rows: list[ChangeSetStatus] = []
    unknown: list[int] = []  # rows whose `covers` is only in the payload of their newest commit
    for key in sorted({*pending, *tasks, *heads}):
        waiting, has_task, head = pending.get(key, 0), key in tasks, heads.get(key)
        if head is not None and not waiting and not has_task and head.is_deleted:
            continue
        sequence, covers, debt, problem = _summary(head)
        if covers is None:
            unknown.append(len(rows))
        update, summary = updates.get((key.workspace, key.change_set)), read_summary(head.headers if head else None)
        rows.append(
            ChangeSetStatus(
                key.workspace, key.change_set, waiting, has_task, sequence, covers or 0, debt, update, problem, *summary
            )
        )
    await _read_whole(reader, rows, unknown)
    streams = await read_streams(js, subjects)
    return Overview(servers, rows, streams, durability_of(streams), await read_tasks(js, subjects))


def _summary(head: Head | None) -> tuple[int, int | None, bool, str]:
    """Return the fields `last_commit`, `covers`, `debt` and `problem` of a `ChangeSetStatus`.

    `covers` is None if only the payload of the newest message contains it.
    """
    if head is None:
        return 0, 0, False, ""
    sequence, _, headers = head
    try:
        peek(headers)
        return sequence, read_covers(headers, sequence), read_sweep_headers(headers)[1] > 0, ""
    except UnsupportedVersion as error:  # the change set is listed with this problem
        return sequence, 0, False, error.message
    except UnprocessableError:  # the message is damaged, or not a commit
        return sequence, None, False, ""


async def _read_whole(reader: CommitReader, rows: list[ChangeSetStatus], numbers: list[int]) -> None:
    """Complete the rows at the indices `numbers`, from the payloads of their newest commits."""
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT_READS)

    async def read(number: int) -> None:
        row, covers, problem = rows[number], 0, ""
        async with limiter:
            try:
                commit = await reader.last(ChangeSetKey(row.workspace, row.change_set))
            except (TransientError, UnsupportedVersion) as error:
                commit, problem = None, error.message
        newest, debt = row.last_commit, False
        if commit is not None:
            newest, debt = max(newest, commit.sequence), commit.debt > 0
            covers = commit.sequence if commit.covers is None else commit.covers
        rows[number] = replace(row, last_commit=newest, covers=covers, debt=debt, problem=problem)

    async with anyio.create_task_group() as group:
        for number in numbers:
            group.start_soon(read, number)


async def key_counts(
    js: JetStream, subjects: Subjects, stream: str, kind: str, workspace: str | None = None
) -> dict[ChangeSetKey, int]:
    """Return the number of messages of each change set in `stream`. `kind` is the token after the root of its subjects.

    If `workspace` is given, only its change sets are counted. The result is empty if the stream does not exist.
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
            continue  # Rebaser did not write these messages
    return counts
