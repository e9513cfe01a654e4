"""Asks the servers of an installation for their identity and state. Needs a connection to NATS, but no JetStream."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import anyio

from rebaser_client.nats.connection import Connection
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.streams.subjects import Subjects

PING_WAIT = 0.5  # seconds within which servers have to answer


@dataclass(frozen=True, slots=True)
class UpdateInfo:
    """A long DVU: it has processed `done` of `total` values so far. `total` is None while the DVU is planned."""

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

    - `owned`, `slots`: how many change sets it owns, and on how many it can work at once.
    - `dvu`: the state of its DVU engine. `updates`: its long DVUs.
    - `sweeper`: whether it is the sweeper. `durability`: its setting, or None.
    - `trouble`: why it is not ready or, if it is, the latest problem that stopped one of its change sets; else empty.
    - `ready`: all streams it needs exist. `losses`: streams that disappeared while it ran, and which data was in them.
    - `functions`: the names of the functions that it can compute. `signatures`: their signatures, by name.
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


async def ping(connection: Connection, subjects: Subjects, wait: float = PING_WAIT) -> list[ServerInfo]:
    """Return the servers that answer within `wait` seconds, sorted by id."""
    servers: list[ServerInfo] = []
    inbox = connection.new_inbox()
    async with connection.subscribe(inbox, request_subject=subjects.ping) as answers:
        await connection.publish(subjects.ping, b"", {REPLY_INBOX: inbox}, reply=inbox)
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
