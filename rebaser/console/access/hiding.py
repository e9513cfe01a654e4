"""Hides values: with `--hide-values`, a viewer sees their kinds and sizes only.

Invariants: values, parameters of functions, and texts that may quote values reach the JSON API only through `shapes`,
which asks this module for each of them. Values are hidden unless the request says that they are shown; so code that
runs outside of a request, and forgets about it, shows nothing.

A number, a truth value and null have no size: the length of a number is a part of it. So messages and formulas, which
may quote one, have no size either, and that of a dead letter is rounded up.
"""

from collections.abc import Mapping
from contextvars import ContextVar

from rebaser_core.errors import UnprocessableError

_SHOWN: ContextVar[bool] = ContextVar("values_shown", default=False)


def show_values(shown: bool) -> None:
    """Decide whether the present request, and what it starts, gets values."""
    _SHOWN.set(shown)


def values_shown() -> bool:
    return _SHOWN.get()


def need_values() -> None:
    """Raise `UnprocessableError` (`values_hidden`) if values are hidden: without them, there is nothing to tell."""
    if not values_shown():
        raise UnprocessableError("this console hides values: it was started with --hide-values", code="values_hidden")


def kind_of(value: object) -> str:
    """Return the kind of a value, and how large it is."""
    if isinstance(value, str):
        return _sized("text", len(value), "character")
    if isinstance(value, Mapping):
        return _sized("object", len(value), "field")
    if isinstance(value, (list, tuple)):
        return _sized("list", len(value), "item")
    if value is None:
        return "null"
    return "truth value" if isinstance(value, bool) else "number"


def told(text: str) -> str:
    """Return `text`, which may quote values. If values are hidden, replace a text that is not empty by `(hidden)`."""
    return text if not text or values_shown() else "(hidden)"


def size_told(size: int) -> int:
    """Return `size`, the number of bytes of data that contains values. If values are hidden, round it up to 1 KiB."""
    return size if values_shown() else -(-size // 1024) * 1024


def told_start(text: str) -> str:
    """Return `text`. If values are hidden, hide what follows the first colon, because it may quote a value."""
    start, colon, rest = text.partition(": ")
    return text if not colon or values_shown() else f"{start}: {told(rest)}"


def _sized(kind: str, size: int, unit: str) -> str:
    return f"{kind}, {size:,} {unit}{'' if size == 1 else 's'}"
