"""Defines and checks JSON values and their states, which are the content of a change set.

Invariant: every stored value is JSON that any reader can represent: `null`, booleans, 64-bit integers, finite doubles,
Unicode text, arrays, and maps with text keys. Two values are the same only if their types are also the same.
"""

import math
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, Union

from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.record import record

Json: TypeAlias = Union[bool, int, float, str, list["Json"], dict[str, "Json"], None]


class Scalar(Protocol):
    """A NumPy scalar, or another object with a method `item` that returns it as a Python object."""

    def item(self, /) -> Any: ...


# The types that a program may pass as a value. `check_json` converts sequences to lists, mappings to dictionaries, and
# NumPy scalars to Python objects.
JsonInput: TypeAlias = Union[bool, int, float, str, Sequence["JsonInput"], Mapping[str, "JsonInput"], Scalar, None]

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
_SIMPLE = frozenset({bool, int, float, str, type(None)})


class State(StrEnum):
    """The state of a value.

    - `ok`: the value is up to date.
    - `stale`: the value depends on a value that has changed, and has not been computed again since then.
    - `error`: the value cannot be computed. Its `Fault` says why.
    - `unset`: the id exists, but has no value.
    """

    OK = "ok"
    STALE = "stale"
    ERROR = "error"
    UNSET = "unset"


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why a value is in state `error`.

    `code` is one of `cycle`, `failed`, `crashed`, `unknown_function`, `missing_input`, `failed_input`, `not_finite`,
    `overflow` and `too_large`. `origin` is the id of the value in which the failure began: either the value itself or a
    value on which it depends.
    """

    code: str
    message: str
    origin: str


@record
class Value:
    """A value with its state. In the states `error` and `unset`, `value` is None. In the state `stale`, `value` is the
    last computed value."""

    value: Json
    state: State
    error: Fault | None = None


def check_json(value: object, limits: Limits = DEFAULT_LIMITS) -> Json:
    """Return `value` as JSON that can be stored. Raise `UnprocessableError` if it is not JSON or exceeds `limits`.

    Objects of the other types in `JsonInput`, such as tuples and NumPy scalars, are converted to JSON.
    """
    kind = type(value)
    if kind is int:
        if INT64_MIN <= value <= INT64_MAX:  # type: ignore[operator]
            return value  # type: ignore[return-value]
    elif kind is float:
        if math.isfinite(value):  # type: ignore[arg-type]
            return value  # type: ignore[return-value]
    elif kind is bool or value is None or _is_plain(value, limits):
        return value  # type: ignore[return-value]
    try:
        _check_nested(value, limits)
    except _Foreign:
        value = _Converter(limits).convert(value)
        _check_nested(value, limits)
    return value  # type: ignore[return-value]


def _is_plain(value: object, limits: Limits) -> bool:
    """Return whether `value` is ASCII text or an empty map, and within `limits`.

    This is a fast check, which is sufficient for most values other than numbers.
    """
    if type(value) is str:
        return value.isascii() and len(value) + 2 <= limits.max_value_bytes
    return type(value) is dict and not value and limits.max_depth > 0 and limits.max_value_bytes >= 2


class NotFiniteError(UnprocessableError):
    """Raised for a number that is infinite or NaN."""


class IntegerRangeError(UnprocessableError):
    """Raised for an integer that does not fit in 64 bits."""


class _Foreign(UnprocessableError):  # noqa: N818 - its name describes the object
    """The error for an object whose type is not a JSON type but may be convertible to one."""


class _Converter:
    """Converts objects to JSON types, up to the maximum size of a value. Objects that cannot be converted are returned
    unchanged."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._room = limits.max_value_bytes

    def convert(self, value: object, depth: int = 0) -> object:
        self._room -= 1
        if self._room < 0:
            raise UnprocessableError(
                f"the value is larger than {self._limits.max_value_bytes} bytes: divide it into several values",
                code="too_large",
            )
        if type(value) in _SIMPLE or depth > self._limits.max_depth:
            return value
        np: Any = sys.modules.get("numpy")  # a program that passes a NumPy scalar has imported NumPy
        if isinstance(value, getattr(np, "generic", ())):
            convertible = isinstance(value, (np.number, np.bool_, np.str_)) and not isinstance(value, np.timedelta64)
            return value.item() if convertible else value  # type: ignore[attr-defined]
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, (int, float)):
            return int(value) if isinstance(value, int) else float(value)
        if isinstance(value, Mapping):
            return {self.convert(key, depth + 1): self.convert(child, depth + 1) for key, child in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
            return [self.convert(child, depth + 1) for child in value]
        return value


def _check_nested(value: object, limits: Limits) -> None:
    """Raise `UnprocessableError` if `value` or anything nested in it is not JSON, or if `value` exceeds `limits`.

    The function is not recursive, so the maximum depth depends on `limits` and not on the interpreter's stack.
    """
    room = limits.max_value_bytes
    stack: list[tuple[object, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        room -= len(item) + 2 if type(item) is str and item.isascii() else _check_one(item)
        if isinstance(item, (list, dict)):
            if depth >= limits.max_depth:
                raise UnprocessableError(
                    f"the value is nested deeper than {limits.max_depth} levels: divide it into several values",
                    code="too_deep",
                )
            if isinstance(item, dict):
                for key in item:
                    if type(key) is not str:
                        raise _Foreign(f"a map key must be text, not {type(key).__name__}", code="invalid_value")
                    room -= len(key) + 2 if key.isascii() else _check_one(key)
                stack.extend((child, depth + 1) for child in item.values())
            else:
                stack.extend((child, depth + 1) for child in item)
        if room < 0:
            raise UnprocessableError(
                f"the value is larger than {limits.max_value_bytes} bytes: divide it into several values",
                code="too_large",
            )


def _check_one(item: object) -> int:
    """Check `item`, but nothing nested in it, and return its approximate size in bytes. Raise `UnprocessableError` if
    it is not JSON."""
    kind = type(item)
    if kind is str:
        try:
            return len(item.encode()) + 2  # type: ignore[attr-defined]
        except UnicodeEncodeError:
            raise UnprocessableError(
                "the text contains a lone surrogate, which is not valid Unicode: remove it", code="invalid_value"
            ) from None
    if kind is int:
        if not INT64_MIN <= item <= INT64_MAX:  # type: ignore[operator]
            raise IntegerRangeError("the integer does not fit in 64 bits: use text instead", code="invalid_value")
        return 9
    if kind is float:
        if not math.isfinite(item):  # type: ignore[arg-type]
            raise NotFiniteError(f"the number must be finite, not {item}: use null instead", code="invalid_value")
        return 9
    if kind is bool or item is None:
        return 1
    if kind is list or kind is dict:
        return 2
    raise _Foreign(f"an object of the type {kind.__name__} is not a JSON value", code="invalid_value")


def canonical(value: Json) -> bytes:
    """Encode a value and its type. The bytes of two values are equal if and only if the values are the same.

    `1`, `1.0` and `true` are different values. All NaNs are the same value. The order of map keys does not matter.
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
    """Return whether two values are the same, including the types of all numbers in them (see `canonical`)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (int, str)) or left is None:
        return left == right
    return canonical(left) == canonical(right)
