"""Priority groups (ADR-42): what a pull may say about the group it belongs to."""

import re
from typing import Any, NamedTuple, Self

from rebaser_core.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9/_=-]{1,16}")
MAX_PRIORITY = 9


class Group(NamedTuple):
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
