"""What an ordered consumer asks of the server: to be made, to be gone, and whether its stream is still the same.

Invariant: a consumer that was made is deleted, by us or, if we cannot for that long, by the server after `INACTIVE`.
"""

from typing import Any, Literal, TypeAlias

import anyio
import structlog

from rebaser_client.jetstream.api import JetStream
from rebaser_client.jetstream.errors import STREAM_NOT_FOUND, ApiError
from rebaser_core.errors import RebaserError, TransientError

log = structlog.get_logger(__name__)

Start: TypeAlias = int | Literal["all", "new", "last", "last_per_subject"]
"""Where to begin: at a stream sequence, or by policy."""

NANOS = 1_000_000_000
INACTIVE = 30  # seconds after which the server removes a consumer that nobody listens to
RETRY_MIN, RETRY_MAX = 0.05, 5.0  # seconds


def ordered_config(
    name: str, filter_subject: str, inbox: str, start: Start, *, idle_heartbeat: float, headers_only: bool
) -> dict[str, Any]:
    """JetStream `ConsumerConfig` (JSON API, docs.nats.io) of a consumer as ADR-17 wants it."""
    config: dict[str, Any] = {
        "name": name,
        "filter_subject": filter_subject,
        "deliver_subject": inbox,
        "ack_policy": "none",
        "replay_policy": "instant",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "flow_control": True,
        "idle_heartbeat": int(idle_heartbeat * NANOS),
        "inactive_threshold": INACTIVE * NANOS,
    }
    if isinstance(start, int):
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(start, 1)}
    else:
        config["deliver_policy"] = start
    if headers_only:
        config["headers_only"] = True
    return config


async def find_loss(js: JetStream, stream: str, created: str, last: int) -> TransientError | None:
    """What happened to the stream, `created` then and read up to `last`, that no later consumer could make good."""
    try:
        info = await js.stream_info(stream)
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        what = "was deleted"
    else:
        if info.created != created:
            what = "was deleted and created again"
        elif info.last_sequence < last:
            what = f"was set back to message {info.last_sequence}, behind {last}"
        else:
            return None
    return TransientError(f"stream {stream} {what}", code="stream_lost")


async def delete_in_time(js: JetStream, stream: str, consumer: str) -> None:
    """Delete the consumer, trying for as long as the server has not done so by itself."""
    pause = RETRY_MIN
    with anyio.move_on_after(INACTIVE):
        while True:
            try:
                await js.connection.wait_connected()
                return await js.delete_consumer(stream, consumer)
            except RebaserError as error:
                log.debug("ordered_delete_failed", stream=stream, consumer=consumer, reason=error.message)
            await anyio.sleep(pause)
            pause = min(pause * 2, RETRY_MAX)
