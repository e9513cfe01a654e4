"""Defines the code and the message of every fault that a derived value can have.

Invariant: a fault depends only on the graph and its values, and not on how the work was divided into updates. So a
value has the same fault after many small updates as after a full recompute.
"""

import re
from collections.abc import Iterable

from rebaser_core.values import Fault

CYCLE = "cycle"
FAILED = "failed"
UNKNOWN_FUNCTION = "unknown_function"
MISSING_INPUT = "missing_input"
FAILED_INPUT = "failed_input"
NOT_FINITE = "not_finite"
OVERFLOW = "overflow"
TOO_LARGE = "too_large"
CRASHED = "crashed"

# The codes of the faults whose messages mention other values. All other messages mention only the value itself.
FROM_INPUTS = frozenset({CYCLE, MISSING_INPUT, FAILED_INPUT})

_NAMED_MEMBERS = 32
_SHOWN_ID = 80
_SHOWN_TEXT = 300
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def quote(id_: str) -> str:
    """Return the id `id_` as messages show it: in quotes, and truncated if it is long."""
    return f"'{id_}'" if len(id_) <= _SHOWN_ID else f"'{id_[: _SHOWN_ID - 1]}…'"


def cycle(members: Iterable[str]) -> Fault:
    """Return the fault that all `members` of a cycle get. Its origin is the smallest of their ids."""
    names = sorted(members)
    if len(names) == 1:
        return Fault(CYCLE, f"{quote(names[0])} depends on itself", names[0])
    shown = ", ".join(quote(name) for name in names[:_NAMED_MEMBERS])
    more = len(names) - _NAMED_MEMBERS
    return Fault(CYCLE, f"these depend on each other: {shown}" + (f" and {more} more" if more > 0 else ""), names[0])


def missing_input(id_: str, input_id: str) -> Fault:
    """Return the fault of the value `id_`, whose input `input_id` does not exist."""
    return Fault(MISSING_INPUT, f"input {quote(input_id)} does not exist", id_)


def failed_input(input_id: str, fault: Fault) -> Fault:
    """Return the fault of a value whose input `input_id` has the fault `fault`. The new fault has the same origin: the
    value in which the failure began."""
    cause = _cause(fault)
    code = "" if cause == FAILED else f": {cause}"
    place = "" if fault.origin == input_id else f" in {quote(fault.origin)}"
    return Fault(FAILED_INPUT, f"input {quote(input_id)} failed{code}{place}", fault.origin)


def _cause(fault: Fault) -> str:
    """Return the code of the fault with which the failure began. A `failed_input` contains that code only in its
    message, as the last word before the id of the origin, or at the end."""
    if fault.code != FAILED_INPUT:
        return fault.code
    return fault.message.removesuffix(f" in {quote(fault.origin)}").rpartition(" ")[2]


def unknown_function(name: str) -> tuple[str, str]:
    """Return the code and the message for a definition whose function is neither built in nor a plug-in."""
    return UNKNOWN_FUNCTION, f"there is no function {quote(name)}"


def crashed(function: str, how: str) -> tuple[str, str]:
    """Return the code and the message for a value whose function ended the process it ran in."""
    return CRASHED, f"function {quote(function)} ended its process: {how}"


def too_many_inputs(limit: int) -> tuple[str, str]:
    """Return the code and the message for a value that has more than `limit` inputs. Each value that a pattern matches
    counts as an input."""
    return TOO_LARGE, f"the value has more than {limit} inputs, counting all that its patterns match"


def ids_too_large(limit: int) -> tuple[str, str]:
    """Return the code and the message for a map whose keys are the ids of its inputs, if these ids take more than
    `limit` bytes."""
    return TOO_LARGE, f"the ids of its inputs take more than {limit} bytes"


def inputs_too_large(limit: int) -> tuple[str, str]:
    """Return the code and the message for a value whose inputs take more than `limit` bytes together."""
    return TOO_LARGE, f"inputs take more than {limit} bytes together"


def text_of(error: BaseException) -> str:
    """Return the type and the message of an exception. Memory addresses are masked, because they differ in each run."""
    return _ADDRESS.sub("0x…", f"{type(error).__name__}: {words_of(error)}")


def words_of(error: BaseException) -> str:
    """Return the message of an exception, truncated if it is long. Characters that are not printable become spaces."""
    try:
        text = str(error)[:_SHOWN_TEXT]
    except BaseException:  # noqa: BLE001 - `str` may run code of a plug-in
        text = ""
    return "".join(char if char.isprintable() else " " for char in text)
