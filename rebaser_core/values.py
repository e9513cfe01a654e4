"""JSON values with a state: what a change set is made of.

Invariant: every stored value is JSON that any reader can hold - `null`, booleans, 64-bit integers, finite doubles,
Unicode text, arrays, and maps with text keys - and "the same" means the same type and the same bytes.
"""

import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, Union

from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS, Limits

Json: TypeAlias = Union[bool, int, float, str, list["Json"], dict[str, "Json"], None]

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


class State(StrEnum):
    """What can be said of a value.

    `ok`: true as of `covers`. `stale`: something it depends on changed and no update has covered that yet.
    `error`: it cannot be computed, and its `Fault` says why. `unset`: known, but nobody gave it a value.
    """

    OK = "ok"
    STALE = "stale"
    ERROR = "error"
    UNSET = "unset"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a value is in state `error`.

    `code` is one of `cycle`, `failed`, `unknown_function`, `missing_input`, `failed_input`, `not_finite`,
    `overflow`, `too_large`; `origin` is the id of the value where the trouble started (its own id if here).
    """

    code: str
    message: str
    origin: str


@dataclass(frozen=True, slots=True)
class Value:
    """A value as a reader sees it. `value` is None in states `error` and `unset`; a stale value shows its last one."""

    value: Json
    state: State
    error: Fault | None = None


def check_json(value: object, limits: Limits = DEFAULT_LIMITS) -> Json:
    """Return `value` if it is a storable JSON value within `limits`, else raise `UnprocessableError`.

    Iterative, so that depth is bounded by `limits` and never by the interpreter's stack.
    """
    kind = type(value)
    if kind is int:
        if INT64_MIN <= value <= INT64_MAX:  # type: ignore[operator]
            return value  # type: ignore[return-value]
    elif kind is float:
        if math.isfinite(value):  # type: ignore[arg-type]
            return value  # type: ignore[return-value]
    elif kind is bool or value is None:
        return value  # type: ignore[return-value]
    _check_nested(value, limits)
    return value  # type: ignore[return-value]


def _check_nested(value: object, limits: Limits) -> None:
    room = limits.max_value_bytes
    stack: list[tuple[object, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        room -= _check_one(item)
        if isinstance(item, (list, dict)):
            if depth >= limits.max_depth:
                raise UnprocessableError(f"value is nested deeper than {limits.max_depth}", code="too_deep")
            if isinstance(item, dict):
                for key in item:
                    if type(key) is not str:
                        raise UnprocessableError("a map key is not text", code="invalid_value")
                    room -= _check_one(key)
                stack.extend((child, depth + 1) for child in item.values())
            else:
                stack.extend((child, depth + 1) for child in item)
        if room < 0:
            raise UnprocessableError(f"value is larger than {limits.max_value_bytes} bytes", code="too_large")


def _check_one(item: object) -> int:
    """Check one node, children apart; return about how many bytes it takes."""
    kind = type(item)
    if kind is str:
        try:
            return len(item.encode()) + 2  # type: ignore[attr-defined]
        except UnicodeEncodeError:
            raise UnprocessableError("text holds a lone surrogate", code="invalid_value") from None
    if kind is int:
        if not INT64_MIN <= item <= INT64_MAX:  # type: ignore[operator]
            raise UnprocessableError("integer does not fit in 64 bits", code="invalid_value")
        return 9
    if kind is float:
        if not math.isfinite(item):  # type: ignore[arg-type]
            raise UnprocessableError("number is not finite", code="invalid_value")
        return 9
    if kind is bool or item is None:
        return 1
    if kind is list or kind is dict:
        return 2
    raise UnprocessableError(f"{kind.__name__} is not a JSON value", code="invalid_value")


def canonical(value: Json) -> bytes:
    """Typed bytes of a value, equal exactly when the values are the same.

    `1`, `1.0` and `true` differ; NaN equals NaN; map order does not count.
    """
    out: list[bytes] = []
    _canonical(value, out)
    return b"".join(out)


def _canonical(value: Json, out: list[bytes]) -> None:
    if value is None:
        out.append(b"n")
    elif value is True or value is False:
        out.append(b"t" if value else b"f")
    elif isinstance(value, int):
        out.append(b"i%d;" % value)
    elif isinstance(value, float):
        out.append(b"d" + (struct.pack(">d", value) if value == value else b"\x7f\xf8\0\0\0\0\0\0"))  # noqa: PLR0124
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        out.append(b"s%d:" % len(raw))
        out.append(raw)
    elif isinstance(value, list):
        out.append(b"[%d:" % len(value))
        for child in value:
            _canonical(child, out)
    else:
        out.append(b"{%d:" % len(value))
        for key in sorted(value):
            _canonical(key, out)
            _canonical(value[key], out)


def same(left: Json, right: Json) -> bool:
    """Whether two values are the same: type for type, byte for byte (see `canonical`)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (int, str)) or left is None:
        return left == right
    return canonical(left) == canonical(right)
