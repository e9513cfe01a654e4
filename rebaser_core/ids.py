"""Names that travel as subject tokens: workspaces, change sets, requests.

Invariant: a `ChangeSetKey` that exists is safe to put into a NATS subject.
"""

import re
from dataclasses import dataclass
from typing import NewType

from rebaser_core.errors import UnprocessableError

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(rf"{_TOKEN.pattern}\.{_TOKEN.pattern}")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)
_VALUES = {char: number for number, char in enumerate(_CROCKFORD)}


RequestId = NewType("RequestId", str)
"""The name of a request: a subject token (a ULID where Rebaser makes it), or `@<sequence>` where it gave none."""


def check_token(token: object, what: str) -> str:
    """`token` if it is a subject token (`[A-Za-z0-9_-]{1,64}`), else raises `UnprocessableError`."""
    if type(token) is not str or _TOKEN.fullmatch(token) is None:
        raise UnprocessableError(f"{what} {str(token)[:80]!r} is not 1 to 64 of A-Z a-z 0-9 _ -", code="invalid_id")
    return token


def check_request_id(id_: object) -> RequestId:
    """`id_` if a request can have it, else raises `UnprocessableError`."""
    return RequestId(check_token(id_, "request id"))


def sequence_id(sequence: int) -> RequestId:
    """What a request is recorded as that gives no readable id: by its place in the stream. No request can have it."""
    return RequestId(f"@{sequence}")


def is_sequence_id(id_: RequestId) -> bool:
    return id_.startswith("@")


@dataclass(frozen=True, slots=True, order=True)
class ChangeSetKey:
    """The key of all ordering: a branch (`change_set`) of a `workspace`."""

    workspace: str
    change_set: str

    @classmethod
    def of(cls, workspace: object, change_set: object) -> "ChangeSetKey":
        """A checked key; raises `UnprocessableError` for a name that cannot be a subject token."""
        return cls(check_token(workspace, "workspace"), check_token(change_set, "change set"))

    def __str__(self) -> str:
        return f"{self.workspace}.{self.change_set}"


def is_key(text: str) -> bool:
    """Whether `text` is a `ChangeSetKey` as it stands in subjects."""
    return _KEY.fullmatch(text) is not None


def ulid(timestamp_ms: int, randomness: bytes) -> str:
    """A ULID (github.com/ulid/spec): 26 characters from 48 bits of milliseconds and 80 random bits.

    Clock and randomness come in as values, because this package has neither.
    """
    number = (timestamp_ms << 80) | int.from_bytes(randomness[:10], "big")
    pairs = _PAIRS
    return "".join([pairs[(number >> shift) & 1023] for shift in range(120, -1, -10)])


def ulid_time_ms(text: str) -> int:
    """The milliseconds in a ULID; raises `UnprocessableError` if it is none."""
    if len(text) != 26 or text[0] > "7" or any(char not in _VALUES for char in text):
        raise UnprocessableError(f"{text[:40]!r} is not a ULID", code="invalid_id")
    number = 0
    for char in text[:10]:
        number = number * 32 + _VALUES[char]
    return number
