"""Makes HTML tables for notebooks, which call `_repr_html_` of an object to display it.

Invariant: ids, values and messages never become markup, and the HTML of an object has at most `MAX_BYTES` bytes,
however large the object is.
"""

import json
from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from typing import Any

from rebaser_core.updates import Derive, Set, Unset
from rebaser_core.values import Json, State, Value

MAX_ROWS = 20
MAX_TEXT = 200  # characters of a cell
MAX_BYTES = 20_000
_RESERVED = 2_000  # bytes of `MAX_BYTES` for the caption, the tags of the table, and the note


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """Return an HTML table with as many of `rows` as fit. `count` is the total number of rows; a note below the table
    says how many are left out."""
    shown: list[str] = []
    room = MAX_BYTES - _RESERVED
    for row in islice(rows, MAX_ROWS):
        line = "<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>"
        room -= len(line.encode(errors="replace"))
        if room < 0:
            break
        shown.append(line)
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    table = f"<table><caption>{_cell(caption)}</caption><thead><tr>{names}</tr></thead><tbody>{''.join(shown)}</tbody>"
    return f"{table}</table>" + (f"<p>and {count - len(shown):,} more</p>" if count > len(shown) else "")


def _cell(cell: object) -> str:
    text = "" if cell is None else str(cell)
    return escape(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…")


def value_text(value: Value) -> str:
    """Return a short text for the value, or for the reason why there is none."""
    if value.error is not None:
        return f"{value.error.code}: {value.error.message}"
    return "" if value.state is State.UNSET else json_text(value.value)


def json_text(value: Json) -> str:
    """Return the beginning of `value` as JSON, a little longer than `MAX_TEXT`. The rest of a large value is not
    encoded."""
    parts: list[str] = []
    room = MAX_TEXT
    for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        parts.append(part[: MAX_TEXT + 1])
        room -= len(part)
        if room < 0:
            break
    return "".join(parts)


def definition_text(definition: Any) -> str:
    """Return a short text for a definition: the value of a `Set`, or the function of a `Derive` with its inputs.

    If `definition` is None, because the value does not exist, return an empty text.
    """
    match definition:
        case Set(value=value):
            return json_text(value)
        case Derive(function=function, inputs=inputs):
            return f"{function}({', '.join(islice(inputs, MAX_ROWS))})"
        case Unset():
            return "unset"
        case _:
            return ""
