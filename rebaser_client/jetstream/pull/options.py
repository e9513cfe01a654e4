"""What `consume`, `fetch` and `next` may be asked for (ADR-37, ADR-42): defaults, limits, and clear refusals.

Invariant: what is refused here is refused before anything is sent, with `ConfigError`.
"""

from typing import NamedTuple, Self

from rebaser_client.jetstream.infos import ConsumerInfo
from rebaser_client.jetstream.priority_groups import PriorityGroup
from rebaser_core.errors import ConfigError

DEFAULT_MESSAGES = 500
BATCH_OF_BYTES = 1_000_000  # messages a pull asks for where bytes are the limit
DEFAULT_EXPIRES = 30.0  # seconds, as all below
MIN_EXPIRES = 1.0  # of consume
MAX_EXPIRES = 1e9  # about 30 years; a server can read some 290 (and not infinity)
MIN_HEARTBEAT, MAX_HEARTBEAT = 0.5, 30.0
LONG_FETCH = 30.0  # a fetch that may take longer has heartbeats by default
NS = 1e-9  # seconds in a nanosecond: the finest time a request can name


class PullLimits(NamedTuple):
    """How much is pulled for at most, and when again. `heartbeat` 0: none. `batch`: messages, if the limit is bytes."""

    limit: int
    by_bytes: bool
    threshold: int
    expires: float
    heartbeat: float
    batch: int = BATCH_OF_BYTES

    @classmethod
    def of_consume(
        cls,
        max_messages: int | None,
        max_bytes: int | None,
        expires: float,
        idle_heartbeat: float | None,
        *,
        threshold_messages: int | None,
        threshold_bytes: int | None,
    ) -> Self:
        if max_messages is not None and max_bytes is not None:
            raise ConfigError("max_messages and max_bytes are both given; only one of them can be the limit")
        limit, by_bytes = _limit(max_messages, max_bytes, DEFAULT_MESSAGES)
        mine, other = ("bytes", "messages") if by_bytes else ("messages", "bytes")
        given = {"messages": threshold_messages, "bytes": threshold_bytes}
        if given[other] is not None:
            raise ConfigError(f"threshold_{other} is of no use: max_{mine} is the limit")
        threshold = given[mine]
        if threshold is None:
            threshold = limit // 2
        elif not 0 <= threshold <= limit:
            raise ConfigError(f"threshold_{mine} is {threshold}; it must be from 0 to max_{mine}, which is {limit}")
        if not MIN_EXPIRES <= expires <= MAX_EXPIRES:
            raise ConfigError(
                f"expires is {expires:g} s; consume takes {MIN_EXPIRES:g} s or more, {MAX_EXPIRES:g} at most"
            )
        if idle_heartbeat is None:
            idle_heartbeat = min(max(expires / 2, MIN_HEARTBEAT), MAX_HEARTBEAT)
        return cls(limit, by_bytes, threshold, expires, _heartbeat(idle_heartbeat, expires))

    @classmethod
    def of_fetch(
        cls, max_messages: int | None, max_bytes: int | None, expires: float, idle_heartbeat: float | None
    ) -> Self:
        limit, by_bytes = _limit(max_messages, max_bytes, None)
        if not NS <= expires <= MAX_EXPIRES:
            raise ConfigError(f"expires is {expires:g} s; a fetch needs some time, {MAX_EXPIRES:g} s at most")
        if idle_heartbeat is None:
            heartbeat = min(expires / 2, MAX_HEARTBEAT) if expires > LONG_FETCH else 0.0
        else:
            heartbeat = _heartbeat(idle_heartbeat, expires)
        return cls(limit, by_bytes, 0, expires, heartbeat, max_messages or BATCH_OF_BYTES)


def _limit(max_messages: int | None, max_bytes: int | None, default: int | None) -> tuple[int, bool]:
    """The limit, and whether it is one of bytes."""
    for name, given in (("max_messages", max_messages), ("max_bytes", max_bytes)):
        if given is not None and given < 1:
            raise ConfigError(f"{name} is {given}; it must be 1 or more")
    limit = max_bytes or max_messages or default
    if limit is None:
        raise ConfigError("neither max_messages nor max_bytes is given; fetch needs one of them")
    return limit, max_bytes is not None


def _heartbeat(seconds: float, expires: float) -> float:
    if not MIN_HEARTBEAT <= seconds <= MAX_HEARTBEAT:
        raise ConfigError(f"idle_heartbeat is {seconds:g} s; it must be from {MIN_HEARTBEAT:g} to {MAX_HEARTBEAT:g} s")
    if 2 * seconds > expires:
        raise ConfigError(f"idle_heartbeat is {seconds:g} s; it must be at most half of expires, {expires:g} s")
    return seconds


def check_group(info: ConsumerInfo, group: PriorityGroup, *, fetch: bool) -> None:
    """Refuse what the consumer, as `info` has it, cannot be pulled for."""
    config = info.config
    what = f"consumer {info.name} of stream {info.stream}"
    if config.get("deliver_subject"):
        raise ConfigError(f"{what} pushes its messages; only a pull consumer can be pulled from")
    groups, policy = config.get("priority_groups") or [], config.get("priority_policy") or "none"
    if policy == "none":
        if group.name is not None:
            raise ConfigError(f"{what} has no priority groups; a group cannot be given")
        return
    if group.name is None:
        raise ConfigError(f"{what} has priority groups; give one of them: {', '.join(groups)}")
    if group.name not in groups:
        raise ConfigError(f"{what} has no group {group.name}; it has {', '.join(groups)}")
    if fetch and policy == "pinned_client":
        raise ConfigError(f"{what} serves a pinned client; use consume, which keeps its pin from pull to pull")
    for field, needed in (("min_pending", "overflow"), ("min_ack_pending", "overflow"), ("priority", "prioritized")):
        if field in group.request and policy != needed:
            raise ConfigError(f"{field} needs priority policy {needed}; {what} has {policy}")
