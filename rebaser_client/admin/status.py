"""Reads the overview that `rebaser status` shows: servers, change sets with their queues, streams.

Everything is read from NATS; nothing is stored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import anyio

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
from rebaser_client.log.reader import LogReader
from rebaser_core.errors import TransientError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey
from rebaser_core.subjects import Subjects

PING_WAIT = 0.5  # seconds within which servers have to answer
MAX_CONCURRENT_READS = 64  # logs


@dataclass(frozen=True, slots=True)
class UpdateInfo:
    """A long DVU: `done` of `total` values are computed so far. `total` is None while the DVU is planned."""

    workspace: str
    change_set: str
    done: int
    total: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Signature:
    """The names of the inputs and parameters that a function takes; None if it takes any."""

    inputs: tuple[str, ...] | None
    params: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A live server.

    - `owned`, `slots`: how many change sets it owns, and how many it can own.
    - `dvu`: the state of its DVU engine. `updates`: its long DVUs.
    - `sweeper`: whether it is the sweeper. `durability`: its setting, or None.
    - `trouble`: the latest problem that stopped one of its change sets, or empty.
    - `ready`: all streams it needs exist. `losses`: streams that disappeared while it ran, with what they held.
    - `functions`: the names of the functions it can derive with. `signatures`: their signatures, by name.
    """

    id: str
    version: str
    owned: int
    slots: int
    dvu: str
    sweeper: bool = False
    durability: str | None = None
    trouble: str = ""
    ready: bool = True
    losses: tuple[str, ...] = ()
    updates: tuple[UpdateInfo, ...] = ()
    functions: tuple[str, ...] = ()
    signatures: Mapping[str, Signature] = field(default_factory=dict)


SERVER_FIELDS = tuple(field_.name for field_ in fields(ServerInfo))
UPDATE_FIELDS = tuple(field_.name for field_ in fields(UpdateInfo))


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
    connection: Connection, js: JetStream, subjects: Subjects, reader: LogReader, workspace: str | None
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
                last = stored.sequence
                try:
                    commit = reader.decode(last, stored.headers, stored.data)
                except (TransientError, UnsupportedVersion) as error:  # show the other change sets all the same
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


async def ping(connection: Connection, subjects: Subjects, wait: float = PING_WAIT) -> list[ServerInfo]:
    """Return the servers that answer within `wait` seconds, sorted by id."""
    servers: list[ServerInfo] = []
    inbox = connection.new_inbox()
    async with connection.subscribe(inbox, request_subject=subjects.ping) as answers:
        await connection.publish(subjects.ping, b"", reply=inbox)
        with anyio.move_on_after(wait):
            async for answer in answers:
                try:
                    servers.append(_server_info(json.loads(answer.data)))
                except (ValueError, TypeError, AttributeError):
                    continue  # not an answer of a server
    return sorted(servers, key=lambda server: server.id)


def _server_info(answer: dict[str, Any]) -> ServerInfo:
    """Read a server's answer. Servers of other versions may send more fields, or fewer."""
    updates = tuple(
        UpdateInfo(**{name: update.get(name) for name in UPDATE_FIELDS}) for update in answer.get("updates", ())
    )
    losses = tuple(map(str, answer.get("losses", ())))
    functions = tuple(map(str, answer.get("functions", ())))
    signatures = {
        str(name): Signature(_names(signature.get("inputs")), _names(signature.get("params")))
        for name, signature in answer.get("signatures", {}).items()
    }
    plain = {name: answer[name] for name in SERVER_FIELDS if name in answer}
    parsed = {"updates": updates, "losses": losses, "functions": functions, "signatures": signatures}
    return ServerInfo(**plain | parsed)


def _names(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(map(str, value))


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
