"""Built-in functions over text.

Invariant: the size of a result is known to be within bounds before it is built.
"""

import re
import string

from rebaser.dvu import faults
from rebaser.dvu.functions.base import FunctionError, Inputs, Params, builtin, flatten, kind
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.values import Json

# Fill, sign, width of three digits, thousands, precision of two digits, type: nothing that asks for megabytes.
_SPEC = re.compile(r"[<>^]?[+ ]?0?[0-9]{0,3},?(\.[0-9]{1,2})?[defgxs%]?")
_FORMATTER = string.Formatter()


def _text(value: Json) -> str:
    """A scalar as text: numbers as JSON writes them, booleans as true and false, null as nothing."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        raise FunctionError(f"{kind(value)} is not text")
    return repr(value)


def _joined(parts: list[str], separator: str = "") -> str:
    size = sum(map(len, parts)) + len(separator) * max(len(parts) - 1, 0)
    if size > DEFAULT_LIMITS.max_value_bytes:
        raise FunctionError(f"the result is larger than {DEFAULT_LIMITS.max_value_bytes} bytes", faults.TOO_LARGE)
    return separator.join(parts)


@builtin("concat")
def concat(values: list[Json], _: Params) -> Json:
    """All inputs as text, one after another. Lists count as their items, maps as their values, null as nothing."""
    return _joined([_text(value) for value in flatten(values)])


@builtin("join")
def join(values: list[Json], params: Params) -> Json:
    """All inputs as text with `separator` (", " unless given) between them, spread out as in `concat`."""
    separator = params.get("separator", ", ")
    if not isinstance(separator, str):
        raise FunctionError("separator is text")
    return _joined([_text(value) for value in flatten(values)], separator)


@builtin("format", "names")
def format_(inputs: Inputs, params: Params) -> Json:
    """`template` with each {name} replaced by the input of that name, as in "{count:>5} of {total:.2f}".

    After a colon: alignment, sign, width up to 999, a comma for thousands, precision up to 99, and d e f g x s or %.
    """
    template = params.get("template")
    if not isinstance(template, str):
        raise FunctionError("params need a template, which is text")
    parts: list[str] = []
    try:
        for literal, name, spec, conversion in _FORMATTER.parse(template):
            parts.append(literal)
            if name is not None:
                parts.append(_field(inputs, name, spec or "", conversion))
    except ValueError as error:
        raise FunctionError(f"template: {error}") from None
    return _joined(parts)


def _field(inputs: Inputs, name: str, spec: str, conversion: str | None) -> str:
    if name not in inputs:
        raise FunctionError(f"template: there is no input {faults.quote(name)}")
    if conversion or _SPEC.fullmatch(spec) is None:
        raise FunctionError(f"template: {faults.quote(spec or str(conversion))} is not a format for {{{name[:80]}}}")
    value = inputs[name]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and spec:
        return format(value, spec)
    return format(_text(value), spec)


ALL = (concat, join, format_)
