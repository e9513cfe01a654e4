"""Priority groups (ADR-42): what a pull may say about the group it belongs to."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from rebaser_core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9/_=-]{1,16}")
MAX_PRIORITY = 9


class PriorityGroup(NamedTuple):
    """`request`: the fields of each pull.

    Policy `overflow`: served only while at least `min_pending` messages wait or `min_ack_pending` are unacknowledged
    (either is enough). Policy `prioritized`: `priority` 0 is served before 1, and so on to 9.
    """

    name: str | None
    request: dict[str, Any]

    @classmethod
    def of(cls, name: str | None, min_pending: int | None, min_ack_pending: int | None, priority: int | None) -> Self:
        """Raises `ConfigError` for what no server takes."""
        fields = {"min_pending": min_pending, "min_ack_pending": min_ack_pending, "priority": priority}
        given = {field: value for field, value in fields.items() if value is not None}
        if name is None:
            if given:
                raise ConfigError(f"{' and '.join(given)} of a pull need the name of a group")
            return cls(None, {})
        check_name(name)
        for field, value in given.items():
            if value < 0 or (field == "priority" and value > MAX_PRIORITY):
                limits = f"from 0 to {MAX_PRIORITY}" if field == "priority" else "0 or more"
                raise ConfigError(f"{field} of a pull is {value}; it must be {limits}")
        return cls(name, {"group": name, **given})


def check_name(name: str) -> None:
    """Raises `ConfigError` unless `name` can be the name of a group."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{name!r} is no name of a group: 1 to 16 of letters, digits, - _ / =")


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse a consumer that ADR-42 forbids, whatever a server says: 2.15 makes some of them."""
    groups, policy = _of(config)
    if policy == "none" and not groups:
        return
    if policy == "none" or not groups:
        raise ConfigError("priority_policy and priority_groups need each other")
    if len(groups) > 1:
        raise ConfigError(f"a consumer has one priority group, and these are {len(groups)}: {', '.join(groups)}")
    check_name(groups[0])
    if config.get("deliver_subject"):
        raise ConfigError("a consumer that pushes its messages can have no priority groups")
    if config.get("ack_policy") != "explicit":
        raise ConfigError(f"priority groups need ack_policy explicit, not {config.get('ack_policy') or 'none'}")


def check_update(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to change what ADR-42 says cannot change: policy and groups. `priority_timeout` can."""
    if _of(found) != _of(wanted):
        (groups, policy), (wanted_groups, wanted_policy) = _of(found), _of(wanted)
        raise ConfigError(
            f"priority groups cannot be changed: policy {policy} with {groups}, wanted {wanted_policy} with "
            f"{wanted_groups}; delete the consumer first"
        )


def _of(config: Mapping[str, Any]) -> tuple[list[str], str]:
    return list(config.get("priority_groups") or []), config.get("priority_policy") or "none"
