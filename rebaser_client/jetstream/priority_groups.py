"""Priority groups (ADR-42): the fields of a pull that concern its group, and the validation of group configurations."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from rebaser_core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9/_=-]{1,16}")
MAX_PRIORITY = 9


class PriorityGroup(NamedTuple):
    """The priority group of a puller. `request` contains the fields that the puller adds to each pull.

    With the policy `overflow`, a pull is served only while at least `min_pending` messages wait, or at least
    `min_ack_pending` messages are unacknowledged. With the policy `prioritized`, pulls with a lower `priority`, from 0
    to 9, are served first.
    """

    name: str | None
    request: dict[str, Any]

    @classmethod
    def of(cls, name: str | None, min_pending: int | None, min_ack_pending: int | None, priority: int | None) -> Self:
        """Return the group for these arguments. Raise `ConfigError` for values that no server accepts."""
        fields = {"min_pending": min_pending, "min_ack_pending": min_ack_pending, "priority": priority}
        present = {field: value for field, value in fields.items() if value is not None}
        if name is None:
            if present:
                fields_text = " and ".join(f"`{field}`" for field in present)
                raise ConfigError(f"a pull with {fields_text} must specify a priority group: set `group`")
            return cls(None, {})
        check_name(name)
        for field, value in present.items():
            if value < 0 or (field == "priority" and value > MAX_PRIORITY):
                limits = f"from 0 to {MAX_PRIORITY}" if field == "priority" else "0 or more"
                raise ConfigError(f"invalid pull setting `{field}`: {value}; it must be {limits}")
        return cls(name, {"group": name, **present})


def check_name(name: str) -> None:
    """Raise `ConfigError` unless `name` is a valid group name."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{name!r} is not a valid group name: use 1 to 16 letters, digits, or any of - _ / =")


def check_config(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a consumer configuration that ADR-42 forbids. NATS 2.15 accepts some of these
    configurations."""
    groups, policy = _of(config)
    if policy == "none" and not groups:
        return
    if policy == "none" or not groups:
        raise ConfigError("a consumer needs both `priority_policy` and `priority_groups`, or neither of them")
    if len(groups) > 1:
        raise ConfigError(f"a consumer can have one priority group, not {len(groups)}: {', '.join(groups)}")
    check_name(groups[0])
    if config.get("deliver_subject"):
        raise ConfigError("a push consumer cannot have priority groups")
    if config.get("ack_policy") != "explicit":
        raise ConfigError(
            f"priority groups require the `ack_policy` explicit, not {config.get('ack_policy') or 'none'}"
        )


def check_update(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if an update would change the policy or the groups, which ADR-42 forbids.

    `priority_timeout` may change.
    """
    if _of(current) != _of(wanted):
        (groups, policy), (wanted_groups, wanted_policy) = _of(current), _of(wanted)
        raise ConfigError(
            f"the priority policy and groups of a consumer cannot be changed (from {policy} with {groups} to "
            f"{wanted_policy} with {wanted_groups}): delete the consumer first"
        )


def _of(config: Mapping[str, Any]) -> tuple[list[str], str]:
    return list(config.get("priority_groups") or []), config.get("priority_policy") or "none"
