"""Defines the built-in functions over text.

Invariant: the size of a result is checked before the result is built.
"""

import re
import string
from collections.abc import Mapping
from typing import Any

from rebaser.dvu import faults
from rebaser.dvu.functions.base import FunctionError, Inputs, Params, builtin, flatten, type_name
from rebaser.dvu.functions.vectorized import InputColumn, to_list
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.values import Json

# The allowed formats: alignment, sign, width of up to three digits, comma for thousands, precision of up to two digits,
# type. The bounds on the digits prevent results of megabytes.
_SPEC = re.compile(r"[<>^]?[+ ]?0?[0-9]{0,3},?(\.[0-9]{1,2})?[defgxs%]?")
_SCALARS = frozenset({str, int, float, bool, type(None)})
_FORMATTER = string.Formatter()


def _text(value: Json) -> str:
    """Return a scalar as text: a number as in JSON, a boolean as `true` or `false`, null as empty text. Raise
    `FunctionError` for a list or map."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        raise FunctionError(f"{type_name(value)} is not text")
    return repr(value)


def _joined(parts: list[str], separator: str = "") -> str:
    size = sum(map(len, parts)) + len(separator) * max(len(parts) - 1, 0)
    if size > DEFAULT_LIMITS.max_value_bytes:
        raise FunctionError(f"the result is larger than {DEFAULT_LIMITS.max_value_bytes} bytes", faults.TOO_LARGE)
    return separator.join(parts)


def _texts(column: Any, spec: str = "") -> list[str | None]:
    """Return a column of scalars as texts, formatted with `spec`. If `spec` is empty, null stays null. Raise
    `FunctionError` if the column contains a list or map."""
    if isinstance(column, tuple):
        raise FunctionError("a list is not text")
    values = to_list(column)
    kinds = set(map(type, values))
    if not kinds <= _SCALARS:
        raise FunctionError("a list or a map is not text")
    if spec:
        return [_formatted(value, spec) for value in values]
    if kinds == {str}:
        return values
    if kinds <= {int, float}:
        return list(map(repr, values))
    return [None if value is None else _text(value) for value in values]


def _joined_all(parts: list[list[str]], separator: str = "") -> list[str]:
    """Return the texts of many values, joined from their parts: `parts[i]` has part `i` of each value. Raise
    `FunctionError` if a result may be too large."""
    size = sum([max(map(len, part)) for part in parts]) + len(separator) * (len(parts) - 1)
    if size > DEFAULT_LIMITS.max_value_bytes:
        raise FunctionError(f"a result could exceed the limit of {DEFAULT_LIMITS.max_value_bytes} bytes")
    if len(parts) == 2:  # takes a third of the time of the general form below
        return [f"{left}{separator}{right}" for left, right in zip(*parts, strict=True)]
    return list(map(separator.join, zip(*parts, strict=True)))


def _without_nulls(part: list[str | None]) -> list[str]:
    """Return `part` with each null replaced by an empty string."""
    return [text or "" for text in part] if None in part else part  # type: ignore[return-value] # just checked


def _concat(columns: list[InputColumn], _: Params) -> list[str]:
    return _joined_all([_without_nulls(_texts(column)) for column in columns])


def _join(columns: list[InputColumn], params: Params) -> list[str]:
    separator = params.get("separator", ", ")
    if not isinstance(separator, str):
        raise FunctionError("separator must be text")
    parts = [_texts(column) for column in columns]
    if any(None in part for part in parts):
        return [_joined([text for text in row if text is not None], separator) for row in zip(*parts, strict=True)]
    return _joined_all([_without_nulls(part) for part in parts], separator)


@builtin("concat", vector=_concat, text=True)
def concat(values: list[Json], _: Params) -> Json:
    """Return all inputs as one text. Lists are replaced by their items, maps by their values. Nulls are skipped."""
    return _joined([_text(value) for value in flatten(values)])


@builtin("join", vector=_join, text=True)
def join(values: list[Json], params: Params) -> Json:
    """Return all inputs, flattened as in `concat`, as one text with `separator` (default ", ") between them."""
    separator = params.get("separator", ", ")
    if not isinstance(separator, str):
        raise FunctionError("separator must be text")
    return _joined([_text(value) for value in flatten(values)], separator)


def _template(params: Params) -> list[tuple[str, str | None, str, str | None]]:
    """Return the literal texts of the param `template`, each with the name, format and conversion of the field that
    follows it. The name is None if no field follows."""
    template = params.get("template")
    if not isinstance(template, str):
        raise FunctionError("the param template is missing or not text")
    try:
        parts = list(_FORMATTER.parse(template))
    except ValueError as error:
        raise FunctionError(f"template: {error}") from None
    return [(literal, name, spec or "", conversion) for literal, name, spec, conversion in parts]


def _format(inputs: Mapping[str, Any], params: Params) -> list[str]:
    parts: list[str | list[str]] = []
    count = 0
    for literal, name, spec, conversion in _template(params):
        parts.append(literal)
        if name is not None:
            _check_field(inputs, name, spec, conversion)
            texts = _without_nulls(_texts(inputs[name], spec))
            count = len(texts)
            parts.append(texts)
    if not count:
        raise FunctionError("the template names no input, so the number of values is unknown")
    return _joined_all([[part] * count if isinstance(part, str) else part for part in parts if part])


@builtin("format", "names", vector=_format, text=True)
def format_(inputs: Inputs, params: Params) -> Json:
    """Return the param `template` with each {name} replaced by the input of that name, as in "{count:>5} of
    {total:.2f}".

    The name may be followed by a colon and a format: alignment, sign, width up to 999, a comma for thousands, precision
    up to 99, and a type (one of d e f g x s %).
    """
    parts: list[str] = []
    for literal, name, spec, conversion in _template(params):
        parts.append(literal)
        if name is not None:
            _check_field(inputs, name, spec, conversion)
            try:
                parts.append(_formatted(inputs[name], spec))
            except ValueError as error:
                raise FunctionError(f"template: {error}") from None
    return _joined(parts)


def _check_field(inputs: Mapping[str, Any], name: str, spec: str, conversion: str | None) -> None:
    if name not in inputs:
        raise FunctionError(f"template: there is no input {faults.quote(name)}")
    if conversion or _SPEC.fullmatch(spec) is None:
        raise FunctionError(f"template: {faults.quote(spec or str(conversion))} is not a format for {{{name[:80]}}}")


def _formatted(value: Json, spec: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and spec:
        return format(value, spec)
    return format(_text(value), spec)


ALL = (concat, join, format_)
