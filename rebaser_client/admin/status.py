"""What `rebaser status` shows: servers, change sets and what they wait for, streams. Read from NATS, kept nowhere."""

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

PING_WAIT = 0.5  # seconds that servers have to answer
AT_ONCE = 64  # logs read at once


@dataclass(frozen=True, slots=True)
class UpdateInfo:
    """A dependent values update that takes its time: `done` of `total` values (None while it is planned) so far."""

    workspace: str
    change_set: str
    done: int
    total: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Signature:
    """The names of inputs and parameters that a function knows; None where any will do."""

    inputs: tuple[str, ...] | None
    params: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A live server: change sets it owns, how many it may, the state of its DVU engine, whether it is the sweeper.

    `durability`: its setting, if it has one. `trouble`: what kept one of its change sets from going on, lately.
    `ready`: it has all the streams it needs; `losses`: those that disappeared while it ran, with what they held.
    `updates`: those that take their time, if there are any. `functions`: the names of those that it can derive with;
    `signatures`: what these know, by name.
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


SERVER_FIELDS = tuple(one.name for one in fields(ServerInfo))
UPDATE_FIELDS = tuple(one.name for one in fields(UpdateInfo))


@dataclass(frozen=True, slots=True)
class ChangeSetStatus:
    """`pending`: requests in the queue; `last_commit`, `covers`: log sequences; `debt`: a DVU is due; `update`: the one
    at work, if it takes its time. `problem`: why the newest message of its log cannot be read."""

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
    servers: list[ServerInfo]
    change_sets: list[ChangeSetStatus]
    streams: list[StreamStatus]
    durability: DurabilityStatus | None
    tasks: TasksStatus | None = None


async def read_overview(
    connection: Connection, js: JetStream, subjects: Subjects, reader: LogReader, workspace: str | None
) -> Overview:
    """An overview of one workspace, or of all."""
    servers = await ping(connection, subjects)
    pending = await key_counts(js, subjects, subjects.requests_stream, "requests", workspace)
    tasks = await key_counts(js, subjects, subjects.tasks_stream, "tasks", workspace)
    commits = await key_counts(js, subjects, subjects.commits_stream, "commits", workspace)
    updates = {(one.workspace, one.change_set): one for server in servers for one in server.updates}
    rows: dict[ChangeSetKey, ChangeSetStatus] = {}
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def read(key: ChangeSetKey) -> None:
        async with limiter:
            stored = await js.last(subjects.commits_stream, subjects.commits(key)) if key in commits else None
            last, covers, debt, problem = 0, 0, False, ""
            if stored is not None:
                last = stored.sequence
                try:
                    commit = reader.decode(last, stored.headers, stored.data)
                except (TransientError, UnsupportedVersion) as error:  # one log is no reason to show nothing of others
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
    """Servers that answer within `wait` seconds."""
    found: list[ServerInfo] = []
    inbox = connection.new_inbox()
    async with connection.subscribe(inbox, request_subject=subjects.ping) as answers:
        await connection.publish(subjects.ping, b"", reply=inbox)
        with anyio.move_on_after(wait):
            async for answer in answers:
                try:
                    found.append(_server(json.loads(answer.data)))
                except (ValueError, TypeError, AttributeError):
                    continue  # not one of ours
    return sorted(found, key=lambda server: server.id)


def _server(told: dict[str, Any]) -> ServerInfo:
    """What a server told; one of another version may tell more, or less."""
    updates = tuple(UpdateInfo(**{name: one.get(name) for name in UPDATE_FIELDS}) for one in told.get("updates", ()))
    losses = tuple(map(str, told.get("losses", ())))
    functions = tuple(map(str, told.get("functions", ())))
    signatures = {
        str(name): Signature(_names(one.get("inputs")), _names(one.get("params")))
        for name, one in told.get("signatures", {}).items()
    }
    given = {name: told[name] for name in SERVER_FIELDS if name in told}
    read = {"updates": updates, "losses": losses, "functions": functions, "signatures": signatures}
    return ServerInfo(**given | read)


def _names(told: Any) -> tuple[str, ...] | None:
    return None if told is None else tuple(map(str, told))


async def key_counts(
    js: JetStream, subjects: Subjects, stream: str, kind: str, workspace: str | None = None
) -> dict[ChangeSetKey, int]:
    """Messages by change set in a stream whose subjects are of `kind`; of one workspace, or of all."""
    pattern = f"{subjects.root}.{kind}.{workspace or '*'}.>"
    counts: dict[ChangeSetKey, int] = {}
    try:
        found = await js.subject_counts(stream, pattern)
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return counts  # no server has been here yet
        raise
    for subject, count in found.items():
        try:
            counts[subjects.parse(subject)[1]] = count
        except UnprocessableError:
            continue  # nothing a Rebaser wrote
    return counts
