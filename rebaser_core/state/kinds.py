"""Values in arrays (`kinds`, `bits` and `others`), and the functions that decode them.

Invariant: a value is its kind and, if it is a number, its 8 bytes: an integer, or the bits of a double. Text, lists and
maps are stored separately, by position. A million numbers are two arrays, never a list of objects. The order of the
kinds matters: compiled code handles every kind up to FLOAT.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rebaser_core.values import State

Kinds: TypeAlias = NDArray[np.uint8]
Bits: TypeAlias = NDArray[np.int64]
T = TypeVar("T")

# The states of a row.
ABSENT, OK, STALE, ERROR, UNSET = range(5)
STATES: Final = (State.UNSET, State.OK, State.STALE, State.ERROR, State.UNSET)
STATE_CODES: Final = {State.OK: OK, State.STALE: STALE, State.ERROR: ERROR, State.UNSET: UNSET}

# The kinds of a value. `rebaser.dvu.wire.column` adds kinds of its own after OTHER.
NULL, FALSE, TRUE, INT, FLOAT, OTHER = range(6)
CONSTANTS: Final[Mapping[int, bool | None]] = {NULL: None, FALSE: False, TRUE: True}  # kinds with a single value

UNDEFINED: Final = -1  # the template of a row without a definition


def is_number(kinds: Kinds) -> NDArray[np.bool_]:
    """Return a mask of the values that are numbers."""
    mask: NDArray[np.bool_] = (kinds == INT) | (kinds == FLOAT)
    return mask


def decode_one(kinds: Kinds, bits: Bits, others: Mapping[int, T], at: int, constants: Mapping[int, T]) -> T:
    """Return the value at position `at`, which is not negative."""
    kind = int(kinds[at])
    value: Any
    if kind == FLOAT:
        value = float(bits.view(np.float64)[at])
    elif kind == INT:
        value = int(bits[at])
    else:
        value = constants[kind] if kind in constants else others[at]
    return value  # type: ignore[no-any-return] # numbers are among the T of every caller


def decode(kinds: Kinds, bits: Bits, others: Mapping[int, T], constants: Mapping[int, T]) -> list[T]:
    """Return all values, as a list. `constants` maps each kind that has only one value to that value. `others` maps
    positions to the values there that are neither constants nor numbers."""
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
    """Return an array of bits with an item for each of `kinds`. `numbers` has the bits of the numbers among them, in
    order. Raises `ValueError` if the counts differ."""
    if len(numbers) == len(kinds):
        return numbers
    places = np.flatnonzero(is_number(kinds))
    if len(places) != len(numbers):  # otherwise NumPy would broadcast a single number to every place
        raise ValueError(f"{len(numbers)} numbers for {len(places)} places")
    bits = np.zeros(len(kinds), np.int64)
    bits[places] = numbers
    return bits
