"""Asks the servers of an installation for their identity and state. This requires a connection to NATS, but not
JetStream."""

import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from time import time
from typing import Any, TypeAlias

import anyio

from rebaser_client.nats.connection import Connection
from rebaser_client.nats.messages import Msg
from rebaser_core.encoding.envelope import JSON, REPLY_INBOX, dumps
from rebaser_core.explain.owner_facts import OwnerFacts, UpdateTimes
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

PING_WAIT = 0.5  # seconds within which servers have to answer, unless a certain answer is missing
PATIENCE = 2.0  # seconds to wait for a missing answer: servers with a slow network answer late


@dataclass(frozen=True, slots=True)
class UpdateInfo:
    """An update of derived values (DVU) that has been running for a long time. It has processed `done` of `total`
    values.

    `total` is None while the DVU is being planned. `seconds` is the time since the DVU began.

    `stage` is `plan`, `spark` (Spark computes values), `absorb` (the server reads the results) or `commit`. `plan` is
    the kind of the plan: `packets`, which are computed in waves, or `full graph`, if most values of a large change set
    have to be computed. It is empty until it is known. `wave` is the number of the wave, from 1. `spark_tag` is
    the tag of its Spark job, as in the web pages of Spark; empty while it has none. From a server of an older release,
    these four are None.
    """

    workspace: str
    change_set: str
    done: int
    total: int | None
    seconds: float
    stage: str | None = None
    plan: str | None = None
    wave: int | None = None
    spark_tag: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """The names of the inputs and parameters that a function takes; None means that the function takes any names."""

    inputs: tuple[str, ...] | None
    params: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server that has answered a ping.

    - `owned`: the number of change sets that the server owns. `slots`: the number of change sets on which it can work
      at the same time.
    - `dvu`: the state of the engine that updates derived values. `updates`: the updates that have been running for a
      long time.
    - `sweeper`: whether the server is the sweeper. `durability`: its durability setting; None if it is not set.
    - `trouble`: the reason why the server is not ready; if it is ready, the latest problem that stopped one of its
      change sets; empty if there is no problem.
    - `ready`: whether all streams that the server needs exist. `losses`: the streams that disappeared while it ran, and
      the kind of data in each.
    - `functions`: the names of the functions that the server can compute. `signatures`: their signatures, by name.
    - `about`: its report on the change set that the ping asked about; None if the ping did not ask about a change set,
      or if the server's release is too old.
    - `held`: the number of delivered tasks on which it does not work, because it has no free slot for them, because
      the previous owner of the change set is ending, or because it has returned them with a delay that is not over. 0
      from a server of an older release.
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
    about: OwnerFacts | None = None
    held: int = 0


SERVER_FIELDS = tuple(field_.name for field_ in fields(ServerInfo))
UPDATE_FIELDS = tuple(field_.name for field_ in fields(UpdateInfo))


Enough: TypeAlias = Callable[[list[ServerInfo]], bool]


def _anyone(_: list[ServerInfo]) -> bool:
    return True


def holders_of(tasks: int, known: Collection[str] = ()) -> Enough:
    """Return a condition for `ping`: the servers that answered have all `tasks` delivered tasks.

    If they have fewer, an answer may be late. However, servers of older releases do not report tasks that they returned
    with a delay, and a server that was started again does not know them. Therefore, it is also enough if all `known`
    servers answered, as long as at least one is known.
    """

    def enough(servers: list[ServerInfo]) -> bool:
        if known and {server.id for server in servers}.issuperset(known):
            return True
        return sum(server.owned + server.held for server in servers) >= tasks

    return enough


async def ping(
    connection: Connection,
    subjects: Subjects,
    wait: float = PING_WAIT,
    key: ChangeSetKey | None = None,
    *,
    patience: float = 0.0,
    enough: Enough = _anyone,
    again: float | None = None,
) -> list[ServerInfo]:
    """Return the servers that answer within `wait` seconds, sorted by id.

    If these answers are not `enough`, wait until they are, but no longer than `patience` seconds in all. If `again` is
    given, repeat the ping every `again` seconds meanwhile, because a server that is starting has not heard the first
    one; of several answers of a server, the newest counts. If `key` is given, the servers also report on this change
    set.
    """
    servers: list[ServerInfo] = []
    inbox = connection.new_inbox()  # one for all pings, so that a late answer to an earlier one is heard, too
    asked = b"" if key is None else dumps(JSON, {"workspace": key.workspace, "changeSet": key.change_set})
    async with connection.subscribe(inbox, request_subject=subjects.ping) as answers:
        deadline = anyio.current_time() + patience
        await connection.publish(subjects.ping, asked, {REPLY_INBOX: inbox}, reply=inbox)
        with anyio.move_on_after(wait):
            await _collect(answers, servers, lambda _: False)
        while not enough(servers) and (left := deadline - anyio.current_time()) > 0:
            if again is not None:
                await connection.publish(subjects.ping, asked, {REPLY_INBOX: inbox}, reply=inbox)
            with anyio.move_on_after(left if again is None else min(again, left)) as waiting:
                await _collect(answers, servers, enough)
            if not waiting.cancelled_caught:
                break  # the answers are enough, or the connection was closed
    if again is not None:
        servers = list({server.id: server for server in servers}.values())
    return sorted(servers, key=lambda server: server.id)


async def _collect(answers: AsyncIterator[Msg], servers: list[ServerInfo], enough: Enough) -> None:
    """Append answers to `servers` until they are `enough`."""
    async for answer in answers:
        try:
            servers.append(_server_info(json.loads(answer.data), time()))
        except (ValueError, TypeError, AttributeError):
            continue  # this answer is not from a server
        if enough(servers):
            return


def _server_info(answer: dict[str, Any], now: float = 0.0) -> ServerInfo:
    """Parse the answer of a server. Servers of other versions may send more or fewer fields."""
    updates = tuple(
        UpdateInfo(**{name: update.get(name) for name in UPDATE_FIELDS}) for update in answer.get("updates", ())
    )
    losses = tuple(map(str, answer.get("losses", ())))
    functions = tuple(map(str, answer.get("functions", ())))
    signatures = {
        str(name): Signature(_names(signature.get("inputs")), _names(signature.get("params")))
        for name, signature in answer.get("signatures", {}).items()
    }
    about = None if answer.get("changeSet") is None else _about(answer["changeSet"], now)
    plain = {name: answer[name] for name in SERVER_FIELDS if name in answer}
    parsed = {"updates": updates, "losses": losses, "functions": functions, "signatures": signatures, "about": about}
    return ServerInfo(**plain | parsed)


def _about(said: dict[str, Any], now: float) -> OwnerFacts:
    names = {field_.name: "".join(_title(field_.name)) for field_ in fields(OwnerFacts)}
    trouble = said.get("trouble") or {}
    known = {name: said[wire] for name, wire in names.items() if wire in said and wire != "trouble"}
    known |= {"trouble_code": str(trouble.get("code", "")), "trouble": str(trouble.get("message", ""))}
    known["trouble_age"] = float(trouble.get("age", 0.0))
    known["recent_updates"] = tuple(
        UpdateTimes(int(one.get("commit")), {str(stage): float(time) for stage, time in one.get("stages").items()})
        for one in said.get("recentUpdates", ())
    )
    return OwnerFacts(**known, skew=float(said["time"]) - now if "time" in said else None)


def _title(name: str) -> list[str]:
    first, *rest = name.split("_")
    return [first, *map(str.title, rest)]


def _names(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(map(str, value))
