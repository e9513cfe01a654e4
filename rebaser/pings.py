"""Answers the pings with which `rebaser status` finds the servers and asks how they are."""

from collections.abc import Callable

import structlog

from rebaser import __version__
from rebaser.change_set.replies import inbox_allowed
from rebaser.dvu.functions import registry
from rebaser.runtime.context import Context
from rebaser.server import Server
from rebaser_core.encoding.envelope import JSON, REPLY_INBOX, dumps
from rebaser_core.errors import RebaserError
from rebaser_core.messages import DvuProgress

log = structlog.get_logger(__name__)


def describe(server: Server) -> dict[str, object]:
    """Return the answer to a ping."""
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
        "slots": snapshot.slots,
        "sweeper": snapshot.sweeper,
        "updates": [_describe_update(update) for update in census.slow_updates],
        "functions": sorted(registry().functions),
        "signatures": {
            function.name: {"inputs": function.inputs, "params": function.params}
            for function in registry().functions.values()
        },
    }


def _describe_update(update: DvuProgress) -> dict[str, object]:
    return {
        "workspace": update.workspace_id,
        "change_set": update.change_set_id,
        "done": update.done,
        "total": update.total,
        "seconds": update.seconds,
    }


async def answer_pings(context: Context, answer: Callable[[], dict[str, object]]) -> None:
    """Send `answer()` to each ping that has an inbox, until cancelled.

    The inbox is chosen by the sender, and named in a header, as for requests (see `rebaser.change_set.replies`). Older
    clients name it only as the reply subject of NATS, which NATS replaces where the ping comes from another account.
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
                await context.connection.publish(inbox, dumps(JSON, answer()))
            except RebaserError as error:  # for instance, the connection was lost since the ping arrived
                log.warning("ping_not_answered", reason=error.message)
