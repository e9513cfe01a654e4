"""Defines how values are stored in the arrays `kinds` and `bits` and the map `others`, and decodes them.

Invariant: `kinds` contains the kind of each value. If the value is a number, `bits` contains its 8 bytes, which are an
integer or the bits of a double. Texts, lists and maps are in `others`, by position. This stores a million numbers in
two arrays instead of a million objects. The order of the kinds must not change, because compiled code contains the
numbers of the kinds up to FLOAT.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rebaser_core.values import State

Kinds: TypeAlias = NDArray[np.uint8]
Bits: TypeAlias = NDArray[np.int64]
T = TypeVar("T")

# The codes of the states of a row.
ABSENT, OK, STALE, ERROR, UNSET = range(5)
STATES: Final = (State.UNSET, State.OK, State.STALE, State.ERROR, State.UNSET)
STATE_CODES: Final = {State.OK: OK, State.STALE: STALE, State.ERROR: ERROR, State.UNSET: UNSET}

# The kinds of a value. `rebaser.dvu.wire.column` adds further kinds after OTHER.
NULL, FALSE, TRUE, INT, FLOAT, OTHER = range(6)
# The kinds with only one possible value.
CONSTANTS: Final[Mapping[int, bool | None]] = {NULL: None, FALSE: False, TRUE: True}

UNDEFINED: Final = -1  # the template of a row without a definition


def is_number(kinds: Kinds) -> NDArray[np.bool_]:
    """Return a mask that is true for each kind that is a number (INT or FLOAT)."""
    mask: NDArray[np.bool_] = (kinds == INT) | (kinds == FLOAT)
    return mask


def decode_one(kinds: Kinds, bits: Bits, others: Mapping[int, T], at: int, constants: Mapping[int, T]) -> T:
    """Return the value at position `at`, which must not be negative. `decode` describes the other parameters."""
    kind = int(kinds[at])
    value: Any
    if kind == FLOAT:
        value = float(bits.view(np.float64)[at])
    elif kind == INT:
        value = int(bits[at])
    else:
        value = constants[kind] if kind in constants else others[at]
    return value  # type: ignore[no-any-return] # the T of every caller includes numbers


def decode(kinds: Kinds, bits: Bits, others: Mapping[int, T], constants: Mapping[int, T]) -> list[T]:
    """Return all values as a list.

    `constants` maps each kind with only one possible value to this value. `others` maps positions to the values that
    are neither constants nor numbers.
    """
    values: list[Any]
    if len(kinds) and (kinds == FLOAT).all():
        values = bits.view(np.float64).tolist()
        return values
    values = bits.tolist()
    if (kinds == INT).all():
        return values
    doubles = kinds == FLOAT
    places = np.flatnonzero(doubles)
    for at, number in zip(places.tolist(), bits[places].view(np.float64).tolist(), strict=True):
        values[at] = number
    for at in np.flatnonzero(~doubles & (kinds != INT)).tolist():
        kind = int(kinds[at])
        values[at] = constants[kind] if kind in constants else others[at]
    return values


def spread_numbers(kinds: Kinds, numbers: Bits) -> Bits:
    """Return the array `bits` for `kinds`. `numbers` contains, in order, an item for each of `kinds` that is a number.

    Raise `ValueError` if `numbers` does not have exactly one item for each of these kinds.
    """
    if len(numbers) == len(kinds):
        return numbers
    places = np.flatnonzero(is_number(kinds))
    if len(places) != len(numbers):  # without this check, NumPy would copy a single number to all positions
        raise ValueError(f"there are {len(numbers)} numbers, but {len(places)} kinds require a number")
    bits = np.zeros(len(kinds), np.int64)
    bits[places] = numbers
    return bits
