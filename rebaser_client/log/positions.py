"""Positions in the log of a change set: their notation, and the error for a position that is no longer readable.

- `draft`: the current state.
- `draft@1234`: the state after the newest commit at or before log sequence 1234.
- `draft@2h`: the state two hours ago; units are s, m, h, d and w.
- `draft@2026-11-22T10:00Z`: the state at a time. A time without a time zone is in UTC.

Log sequences are sequences of the stream that contains all logs, so a log sequence or a time refers to the same moment
in all change sets.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, TypeVar

from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, check_token

T = TypeVar("T")

At: TypeAlias = int | datetime
"""A log sequence, or a time with its time zone."""

ATTEMPTS = 3  # attempts to read the newest position of a log that is being purged
MAX_SEQUENCE = 2**63 - 1
_AGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SEQUENCE = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class NamedPosition:
    """A position in the log of `change_set`; None as `at` means the newest commit."""

    change_set: str
    at: At | None = None

    def __str__(self) -> str:
        return self.change_set if self.at is None else f"{self.change_set}@{at_text(self.at)}"


def parse_position(text: str, now: datetime) -> NamedPosition:
    """Parse `name`, `name@sequence`, `name@age` or `name@time`; ages count back from `now`.

    Raise `UnprocessableError` with code `invalid_id` for an invalid name, and with code `invalid_position` for an
    invalid part after the `@`.
    """
    name, separator, position = text.partition("@")
    check_token(name, "change set")
    return NamedPosition(name, parse_at(position, now, name) if separator else None)


def parse_at(text: str, now: datetime, name: str = "NAME") -> At:
    """Parse the part of a position after the `@`: a sequence, an age or a time.

    `name` is the change set that the error message uses in its examples. Raise `UnprocessableError`, with code
    `invalid_position`, for any other text.
    """
    if _SEQUENCE.fullmatch(text) and int(text) <= MAX_SEQUENCE:
        return int(text)
    time = parse_time(text, now)
    if time is None:
        raise UnprocessableError(
            f"{text[:40]!r} is not a position; write {name}@1234 (a sequence), {name}@2h (an age) or"
            f" {name}@2026-01-31T12:00Z (a time)",
            code="invalid_position",
        )
    return time


def parse_time(text: str, now: datetime) -> datetime | None:
    """Parse an age such as `10m`, which counts back from `now`, or an ISO 8601 time. Return the time in UTC.

    A time without a time zone is in UTC. Return None for any other text.
    """
    age = _AGE.fullmatch(text.strip())
    try:
        if age is not None:
            return now - timedelta(**{_UNITS[age[2]]: float(age[1])})
        time = datetime.fromisoformat(text.strip())
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def check_at(at: At) -> At:
    """Return `at`. Raise `UnprocessableError` for a negative sequence, or a time without a time zone."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise UnprocessableError(
                f"the time {at.isoformat()} has no time zone: add one, such as UTC", code="invalid_position"
            )
    elif type(at) is not int or not 0 <= at <= MAX_SEQUENCE:
        raise UnprocessableError(
            f"a position is a log sequence from 0 to 2**63 - 1, or a time, not {at!r}", code="invalid_position"
        )
    return at


def at_text(at: At) -> str:
    """Return the text of a sequence or a time, in the form that `parse_at` reads."""
    return str(at) if isinstance(at, int) else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


class PositionPurged(UnprocessableError):  # noqa: N818 - named after a state of the position
    """The state at position `at` is no longer readable, because the part of the log that it needs was purged.

    `oldest` is the log sequence of the oldest readable position, `since` the time when its commit was stored. Both are
    None if no position is readable.
    """

    default_code = "purged"

    def __init__(self, key: ChangeSetKey, at: At, oldest: tuple[int, datetime] | None) -> None:
        name = f"{key.workspace}/{key.change_set}"
        begins = (
            "no position of its log is readable"
            if oldest is None
            else f"its history begins at {key.change_set}@{oldest[0]}, stored {oldest[1]:%Y-%m-%dT%H:%M:%SZ}"
        )
        super().__init__(f"{name}@{at_text(at)} is no longer readable: {begins}")
        self.key = key
        self.at = at
        self.oldest = None if oldest is None else oldest[0]
        self.since = None if oldest is None else oldest[1]


async def read_newest(read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `read`, which looks up the newest position of a log and then reads that position.

    If that position is purged in between, `read` is called again, because callers that did not specify a position must
    not get an error about one.

    Raise `TransientError` with code `purged` if that happens `ATTEMPTS` times. Other errors of `read` are raised
    unchanged.
    """
    for _ in range(ATTEMPTS):
        try:
            return await read()
        except PositionPurged as error:
            problem = error
    raise TransientError(
        f"the log was purged while it was read ({problem.message}); try again", code="purged"
    ) from problem
