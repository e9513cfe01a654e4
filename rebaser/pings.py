"""Answers the pings that `rebaser status` sends to find the servers and read their state."""

import json
import time
from collections.abc import Callable
from typing import Any

import structlog

from rebaser import __version__
from rebaser.change_set.replies import inbox_allowed
from rebaser.dvu.functions import registry
from rebaser.runtime.context import Context
from rebaser.server import Server
from rebaser.snapshot import SlowUpdate
from rebaser.telemetry.clocks import RECENT_LAG
from rebaser_core.encoding.envelope import JSON, REPLY_INBOX, dumps
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey

log = structlog.get_logger(__name__)

MAX_PING = 1024  # maximum bytes of a ping that asks about a change set


def describe(server: Server) -> dict[str, object]:
    """Return the part of the answer to a ping that describes the whole server."""
    snapshot, census = server.snapshot(), server.census()
    return {
        "id": snapshot.server_id,
        "version": __version__,
        "dvu": snapshot.spark,
        "durability": snapshot.durability,
        "ready": not snapshot.missing,
        "trouble": snapshot.missing or snapshot.trouble,
        "losses": list(snapshot.losses),
        "owned": snapshot.owned,
        "held": snapshot.tasks_held + snapshot.tasks_following + snapshot.tasks_returned,
        "slots": snapshot.slots,
        "sweeper": snapshot.sweeper,
        "updates": [_describe_update(update) for update in census.slow_updates],
        "functions": sorted(registry().functions),
        "signatures": {
            function.name: {"inputs": function.inputs, "params": function.params}
            for function in registry().functions.values()
        },
    }


def _describe_update(slow: SlowUpdate) -> dict[str, object]:
    update = slow.report
    return {
        "workspace": update.workspace_id,
        "change_set": update.change_set_id,
        "done": update.done,
        "total": update.total,
        "seconds": update.seconds,
        "stage": slow.stage,
        "plan": slow.plan,
        "wave": slow.wave,
        "spark_tag": slow.spark_tag,
    }


def about_change_set(context: Context, server: Server, payload: bytes) -> dict[str, object]:
    """Return the fields that describe the change set that a ping asks about; an empty dict if it asks about none.
    `payload` is the payload of the ping.

    `OwnerFacts` in `rebaser_core.explain` describes the fields. `trouble` is the newest failure of the change set on
    this server. `time` is the time on the clock of this server, in Unix seconds.
    """
    try:
        asked: Any = json.loads(payload) if 0 < len(payload) <= MAX_PING else None
        key = ChangeSetKey.of(asked["workspace"], asked["changeSet"])
    except (ValueError, TypeError, KeyError, RecursionError, RebaserError):
        return {}  # the ping does not ask about a change set
    failure = context.health.of(key, context.now())
    about = server.about(key) | {
        "rtt": context.connection.away_and_rtt()[1],
        "time": time.time(),
        "lag": RECENT_LAG.seconds,
        "reading": context.loads.of(key),
        "function": context.engine.functions.get(str(key), ""),
        "sparkWaits": sum(context.engine.load[0]),
        "recentUpdates": context.recent_updates.of(key),
        "seesJobs": context.settings.spark.startswith("local"),  # the workers of another Spark report no progress
    }
    if failure is not None:
        age, error = failure
        about["trouble"] = {"code": error.code, "message": error.message, "age": round(age, 3)}
    return {"changeSet": about}


async def answer_pings(
    context: Context,
    answer: Callable[[], dict[str, object]],
    about: Callable[[bytes], dict[str, object]] = lambda _: {},
) -> None:
    """Reply to each ping that has an inbox for the reply, until cancelled. The reply has the fields of `answer()` and
    those of `about(payload)`.

    The sender chooses the inbox and puts it in a header, as in requests (see `rebaser.change_set.replies`). Older
    clients set only the reply subject of NATS. NATS replaces that subject if the ping comes from another account.
    """
    async with context.connection.subscribe(context.subjects.ping) as pings:
        async for ping in pings:
            inbox = ping.headers.get(REPLY_INBOX) or ping.reply
            if not inbox:
                continue
            if not inbox_allowed(inbox, context.settings.replies_under()):
                log.warning("ping_refused", inbox=inbox[:80])
                continue
            try:
                await context.connection.publish(inbox, dumps(JSON, answer() | about(ping.data)))
            except RebaserError as error:  # for instance, the connection was lost after the ping arrived
                log.warning("ping_not_answered", reason=error.message)
