"""Checks and makes the names of workspaces, change sets and requests.

Invariant: the names in a `ChangeSetKey` from `of` or `of_any` are valid tokens of a NATS subject.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NewType

from rebaser_core.errors import UnprocessableError

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(rf"{_TOKEN.pattern}\.{_TOKEN.pattern}")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)
_DIGITS = bytes([ord(_CROCKFORD[byte & 31]) for byte in range(256)])
_VALUES = {char: number for number, char in enumerate(_CROCKFORD)}


RESERVED = "-"
"""The workspace for messages that belong to no user's workspace: the garbage collection log, and requests whose subject
does not specify a change set."""

RequestId = NewType("RequestId", str)
"""The id of a request: a subject token (a ULID if Rebaser made it), or `@<sequence>` if the request contained no id."""


# Matches a text of three tokens with spaces between them. No token has a space, so the three are valid if this matches.
match_tokens = re.compile(rf"{_TOKEN.pattern} {_TOKEN.pattern} {_TOKEN.pattern}").fullmatch


def check_token(token: object, what: str) -> str:
    """Return `token` unchanged. Raise `UnprocessableError` if it is not a subject token (`[A-Za-z0-9_-]{1,64}`).

    `what` describes the token in the error message, for instance as "workspace".
    """
    if type(token) is not str or _TOKEN.fullmatch(token) is None:
        raise UnprocessableError(
            f"{what} {str(token)[:80]!r} must be 1 to 64 characters from A-Z a-z 0-9 _ -", code="invalid_id"
        )
    return token


def check_request_id(id_: object) -> RequestId:
    """Return `id_` unchanged. Raise `UnprocessableError` if it is not a valid request id."""
    return RequestId(check_token(id_, "request id"))


def sequence_id(sequence: int) -> RequestId:
    """Return the id under which the log records a request that has no readable id.

    The id contains `@` and the request's sequence in its stream. Request ids must not contain `@`, so no sender can use
    this id.
    """
    return RequestId(f"@{sequence}")


def is_sequence_id(id_: RequestId) -> bool:
    return id_.startswith("@")


@dataclass(frozen=True, slots=True, order=True)
class ChangeSetKey:
    """A change set's name together with its workspace's name. Requests with the same key are applied in order."""

    workspace: str
    change_set: str
    _hash: int = field(init=False, repr=False, compare=False)  # kept, because each request needs it several times

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.workspace, self.change_set)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:  # texts have other hashes in other processes
        return ChangeSetKey, (self.workspace, self.change_set)

    @classmethod
    def of(cls, workspace: object, change_set: object) -> "ChangeSetKey":
        """Check both names and return their key. Raise `UnprocessableError` if a name is not a subject token, or if the
        workspace is the reserved one."""
        key = cls.of_any(workspace, change_set)
        if key.workspace == RESERVED:
            raise UnprocessableError(
                f"the workspace name {RESERVED!r} is reserved: use a name with a letter or a digit", code="invalid_id"
            )
        return key

    @classmethod
    def of_any(cls, workspace: object, change_set: object) -> "ChangeSetKey":
        """Return the same key as `of`, but accept the workspace `RESERVED` as well."""
        return cls(check_token(workspace, "workspace"), check_token(change_set, "change set"))

    def beside(self, change_set: str) -> "ChangeSetKey":
        """Return the key of the change set `change_set` in the same workspace. The caller must have checked the
        name."""
        return ChangeSetKey(self.workspace, change_set)

    def __str__(self) -> str:
        return f"{self.workspace}.{self.change_set}"


def is_key(text: str) -> bool:
    """Return whether `text` has the form `<workspace>.<change_set>`, with names that `ChangeSetKey.of` accepts."""
    return _KEY.fullmatch(text) is not None and not text.startswith(f"{RESERVED}.")


def ulid(timestamp_ms: int, randomness: bytes) -> str:
    """Return a ULID (github.com/ulid/spec), which is 26 characters long.

    `timestamp_ms` is the Unix time, which becomes the first 48 bits. `randomness` contains at least 10 bytes, of which
    the first 10 become the other 80 bits. Both are parameters because this package uses neither a clock nor a random
    source.
    """
    pairs, bits = _PAIRS, int.from_bytes(randomness[:10], "big")
    # A loop would take three times as long, and this function runs for each request.
    return (
        f"{_time_part(timestamp_ms)}{pairs[bits >> 70]}{pairs[bits >> 60 & 1023]}{pairs[bits >> 50 & 1023]}"
        f"{pairs[bits >> 40 & 1023]}{pairs[bits >> 30 & 1023]}{pairs[bits >> 20 & 1023]}{pairs[bits >> 10 & 1023]}"
        f"{pairs[bits & 1023]}"
    )


def random_ulid(timestamp_ms: int, randomness: bytes) -> str:
    """Return a ULID, like `ulid`, in a quarter of the time. `randomness` contains 16 bytes; each of them becomes 5
    bits. With fewer bytes, the result is the beginning of a ULID, for example for `numbered_ulid`."""
    return _time_part(timestamp_ms) + randomness.translate(_DIGITS).decode()


def numbered_ulid(start: str, number: int) -> str:
    """Return the ULID that has the first 18 characters `start`, and the last 40 bits `number`. This takes a third of
    the time of `ulid`."""
    pairs = _PAIRS
    return f"{start}{pairs[number >> 30]}{pairs[number >> 20 & 1023]}{pairs[number >> 10 & 1023]}{pairs[number & 1023]}"


def first_of(ids: Sequence[str]) -> str:
    """Return the first ten of `ids`, and the number of the remaining ids, as text for a message."""
    more = f" and {len(ids) - 10:,} more" if len(ids) > 10 else ""
    return f"{', '.join(ids[:10])}{more}"


@lru_cache(maxsize=4)
def _time_part(timestamp_ms: int) -> str:
    return "".join([_PAIRS[(timestamp_ms >> shift) & 1023] for shift in range(40, -1, -10)])


def ulid_time_ms(text: str) -> int:
    """Return the Unix time (ms) that a ULID contains. Raise `UnprocessableError` if `text` is not a ULID."""
    if len(text) != 26 or text[0] > "7" or any(char not in _VALUES for char in text):
        raise UnprocessableError(
            f"{text[:40]!r} is not a ULID: a ULID has 26 characters from 0-9 and A-Z, without I, L, O and U",
            code="invalid_id",
        )
    number = 0
    for char in text[:10]:
        number = number * 32 + _VALUES[char]
    return number
