"""Answers the pings with which `rebaser status` finds the servers and asks how they are."""

from collections.abc import Callable, Iterable

import structlog

from rebaser.change_set.replies import inbox_allowed
from rebaser.dvu.functions import registry
from rebaser.runtime.context import Context
from rebaser_core.encoding.envelope import JSON, dumps
from rebaser_core.errors import RebaserError
from rebaser_core.messages import DvuProgress

log = structlog.get_logger(__name__)


def describe(context: Context) -> dict[str, object]:
    """Return the part of an answer that depends only on the parts that all owners share."""
    return {
        "id": context.settings.server_id,
        "dvu": context.engine.state,
        "durability": context.settings.durability,
        "ready": not context.stream_watch.problem,
        "trouble": context.stream_watch.problem or context.health.current(context.now()),
        "losses": list(context.stream_watch.losses),
        "functions": sorted(registry().functions),
        "signatures": {
            function.name: {"inputs": function.inputs, "params": function.params}
            for function in registry().functions.values()
        },
    }


def describe_updates(updates: Iterable[DvuProgress]) -> list[dict[str, object]]:
    """Return the part of an answer that lists the DVUs that have run for a long time."""
    return [
        {
            "workspace": update.workspace_id,
            "change_set": update.change_set_id,
            "done": update.done,
            "total": update.total,
            "seconds": update.seconds,
        }
        for update in updates
    ]


async def answer_pings(context: Context, answer: Callable[[], dict[str, object]]) -> None:
    """Send `answer()` to each ping that has an inbox, until cancelled.

    The inbox is chosen by the sender, as for requests (see `rebaser.change_set.replies`).
    """
    async with context.connection.subscribe(context.subjects.ping) as pings:
        async for ping in pings:
            if not ping.reply:
                continue
            if not inbox_allowed(ping.reply, context.settings.inbox_prefix):
                log.warning("ping_refused", inbox=ping.reply[:80])
                continue
            try:
                await context.connection.publish(ping.reply, dumps(JSON, answer()))
            except RebaserError as error:  # for instance, the connection was lost since the ping arrived
                log.warning("ping_not_answered", reason=error.message)
