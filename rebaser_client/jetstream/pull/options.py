"""Checks the arguments of `consume`, `fetch` and `next` (ADR-37, ADR-42) and fills in their defaults.

Invariant: invalid arguments raise `ConfigError` before anything is sent.
"""

from typing import NamedTuple, Self

from rebaser_client.jetstream.infos import ConsumerInfo
from rebaser_client.jetstream.priority_groups import PriorityGroup
from rebaser_core.errors import ConfigError

DEFAULT_MESSAGES = 500
BATCH_OF_BYTES = 1_000_000  # messages requested by a pull whose limit is in bytes
DEFAULT_EXPIRES = 30.0  # seconds, like all constants below
MIN_EXPIRES = 1.0  # for `consume`; `fetch` and `next` accept shorter times
MAX_EXPIRES = 1e9  # about 30 years; a server can parse up to about 290 years, but not infinity
MIN_HEARTBEAT, MAX_HEARTBEAT = 0.5, 30.0
LONG_FETCH = 30.0  # a fetch with a longer `expires` has heartbeats by default
NS = 1e-9  # seconds in a nanosecond, the shortest time that a request can express


class PullLimits(NamedTuple):
    """The maximum amount that pulls request, the threshold at which the next pull is sent, and the times of a pull.

    `limit` and `threshold` are numbers of messages, or of bytes if `by_bytes` is true. `expires` and `heartbeat` are
    seconds; a `heartbeat` of 0 means that there are no heartbeats. `batch` is the number of messages that a pull
    requests if the limit is in bytes.
    """

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
            raise ConfigError("`max_messages` and `max_bytes` are both given: give only one of them")
        limit, by_bytes = _limit(max_messages, max_bytes, DEFAULT_MESSAGES)
        unit, other = ("bytes", "messages") if by_bytes else ("messages", "bytes")
        thresholds = {"messages": threshold_messages, "bytes": threshold_bytes}
        if thresholds[other] is not None:
            raise ConfigError(f"`threshold_{other}` has no effect if the limit is `max_{unit}`: set `threshold_{unit}`")
        threshold = thresholds[unit]
        if threshold is None:
            threshold = limit // 2
        elif not 0 <= threshold <= limit:
            raise ConfigError(f"`threshold_{unit}` is {threshold}; it must be from 0 to `max_{unit}`, which is {limit}")
        if not MIN_EXPIRES <= expires <= MAX_EXPIRES:
            raise ConfigError(
                f"`expires` is {expires:g} s; for `consume` it must be from {MIN_EXPIRES:g} to {MAX_EXPIRES:g} s"
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
            raise ConfigError(
                f"`expires` is {expires:g} s; for `fetch` and `next` it must be above 0, and at most {MAX_EXPIRES:g} s"
            )
        if idle_heartbeat is None:
            heartbeat = min(expires / 2, MAX_HEARTBEAT) if expires > LONG_FETCH else 0.0
        else:
            heartbeat = _heartbeat(idle_heartbeat, expires)
        return cls(limit, by_bytes, 0, expires, heartbeat, max_messages or BATCH_OF_BYTES)


def _limit(max_messages: int | None, max_bytes: int | None, default: int | None) -> tuple[int, bool]:
    """Return the limit and whether it is in bytes."""
    for name, value in (("max_messages", max_messages), ("max_bytes", max_bytes)):
        if value is not None and value < 1:
            raise ConfigError(f"`{name}` is {value}; it must be 1 or more")
    limit = max_bytes or max_messages or default
    if limit is None:
        raise ConfigError("neither `max_messages` nor `max_bytes` is given: give at least one of them")
    return limit, max_bytes is not None


def _heartbeat(seconds: float, expires: float) -> float:
    if not MIN_HEARTBEAT <= seconds <= MAX_HEARTBEAT:
        raise ConfigError(
            f"`idle_heartbeat` is {seconds:g} s; it must be from {MIN_HEARTBEAT:g} to {MAX_HEARTBEAT:g} s"
        )
    if 2 * seconds > expires:
        raise ConfigError(f"`idle_heartbeat` is {seconds:g} s; it must be at most {expires / 2:g} s, half of `expires`")
    return seconds


def check_group(info: ConsumerInfo, group: PriorityGroup, *, fetch: bool) -> None:
    """Raise `ConfigError` if the consumer, as `info` describes it, cannot serve pulls of `group`."""
    config = info.config
    what = f"consumer {info.name} of stream {info.stream}"
    if config.get("deliver_subject"):
        raise ConfigError(f"{what} is a push consumer; only a pull consumer can be pulled from")
    groups, policy = config.get("priority_groups") or [], config.get("priority_policy") or "none"
    if policy == "none":
        if group.name is not None:
            raise ConfigError(f"{what} has no priority groups: omit `group`")
        return
    if group.name is None:
        raise ConfigError(f"{what} has priority groups: set `group` to one of them ({', '.join(groups)})")
    if group.name not in groups:
        raise ConfigError(
            f"{what} has no priority group {group.name}: set `group` to one that exists ({', '.join(groups)})"
        )
    if fetch and policy == "pinned_client":
        raise ConfigError(f"{what} pins a client: use `consume`, which keeps its pin from pull to pull")
    for field, required in (("min_pending", "overflow"), ("min_ack_pending", "overflow"), ("priority", "prioritized")):
        if field in group.request and policy != required:
            raise ConfigError(f"`{field}` requires the priority policy {required}, but {what} has the policy {policy}")
