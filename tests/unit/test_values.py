"""Tests when two values are identical, and which values can be stored."""

import math
import struct
from collections import OrderedDict
from enum import IntEnum, StrEnum
from functools import reduce
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import Limits
from rebaser_core.values import canonical, check_json, same
from tests.wire.strategies import json_values


def test_types_are_part_of_a_value() -> None:
    alike: list[Any] = [1, 1.0, True, "1", [1], [1.0], [True], {"a": 1}, {"a": 1.0}, {"a": True}]
    for left in range(len(alike)):
        for right in range(len(alike)):
            assert same(alike[left], alike[right]) == (left == right)
            assert (canonical(alike[left]) == canonical(alike[right])) == (left == right)


def test_floats_are_compared_by_their_bytes() -> None:
    other_nan = struct.unpack(">d", b"\x7f\xf8\0\0\0\0\0\x01")[0]
    assert same(math.nan, other_nan)
    assert same([math.nan], [-math.nan])
    assert not same(0.0, -0.0)
    assert not same([0.0], [-0.0])


def test_the_order_of_a_map_does_not_count_and_that_of_a_list_does() -> None:
    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert not same([1, 2], [2, 1])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["ab"], ["a", "b"]),
        ([["a"], "b"], [["a", "b"]]),
        ({"a": "b"}, {"a": {"b": None}}),
        ({"a": 1, "b": 2}, {"a": {"b": 2}}),
        ([], {}),
        ("", None),
        ("s1:a", "a"),
        ([1, 2], [12]),
        ({"a1": 1}, {"a": 11}),
    ],
    ids=repr,
)
def test_structure_cannot_be_forged_by_content(left: Any, right: Any) -> None:
    assert canonical(left) != canonical(right)
    assert not same(left, right)


def typed(value: Any) -> object:
    """Return a value with its types spelled out, to compare as `canonical` does."""
    if isinstance(value, dict):
        return ("map", sorted((key, typed(child)) for key, child in value.items()).__repr__())
    if isinstance(value, list):
        return ("list", [typed(child) for child in value])
    return (type(value).__name__, repr(value))


@settings(deadline=None)
@given(json_values, json_values)
def test_canonical_bytes_are_equal_exactly_for_the_same_values(left: Any, right: Any) -> None:
    assert (canonical(left) == canonical(right)) == (typed(left) == typed(right))
    assert same(left, right) == (canonical(left) == canonical(right))


@settings(deadline=None)
@given(json_values, st.randoms(use_true_random=False))
def test_a_shuffled_copy_is_the_same_value(value: Any, random: Any) -> None:
    def shuffled(item: Any) -> Any:
        if isinstance(item, dict):
            keys = list(item)
            random.shuffle(keys)
            return {key: shuffled(item[key]) for key in keys}
        return [shuffled(child) for child in item] if isinstance(item, list) else item

    assert same(value, shuffled(value))


@settings(deadline=None)
@given(json_values)
def test_every_json_value_may_be_stored_as_it_is(value: Any) -> None:
    assert check_json(value) is value


def test_the_size_of_a_value_counts_all_of_it() -> None:
    limits = Limits(max_value_bytes=100)
    values: list[Any] = ["x" * 99, {"x" * 99: 1}, [[]] * 60, [1] * 20, {str(n): None for n in range(40)}]
    for value in values:
        with pytest.raises(UnprocessableError) as caught:
            check_json(value, limits)
        assert caught.value.code == "too_large"
    assert check_json("x" * 90, limits)


def test_text_is_measured_in_bytes() -> None:
    limits = Limits(max_value_bytes=100)
    with pytest.raises(UnprocessableError):
        check_json("é" * 60, limits)


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


@pytest.mark.parametrize(
    ("given", "stands_for"),
    [
        (np.int64(1), 1),
        (np.uint8(255), 255),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        ((1, (2,)), [1, [2]]),
        (range(2), [0, 1]),
        ([np.int64(1)], [1]),
        (MappingProxyType({"a": (1,)}), {"a": [1]}),
        (OrderedDict(a=np.int64(1)), {"a": 1}),
        ({np.str_("a"): 1}, {"a": 1}),
        (Colour.RED, "red"),
        (Size.LARGE, 3),
    ],
    ids=repr,
)
def test_what_stands_for_json_becomes_json(given: Any, stands_for: Any) -> None:
    assert typed(check_json(given)) == typed(stands_for)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (np.datetime64("2020-01-01T00:00:00", "ns"), "invalid_value"),
        (np.timedelta64(1, "ns"), "invalid_value"),
        (np.complex128(1), "invalid_value"),
        (np.array([1]), "invalid_value"),
        (np.float64("nan"), "invalid_value"),
        (np.uint64(2**64 - 1), "invalid_value"),
        (bytearray(b"x"), "invalid_value"),
        ({1, 2}, "invalid_value"),
        ({1: 2}, "invalid_value"),
        (range(10**12), "too_large"),
        (reduce(lambda inner, _: (inner, inner), range(60), ()), "too_large"),  # type: ignore[arg-type, return-value]
        (reduce(lambda inner, _: (inner,), range(100), ()), "too_deep"),  # type: ignore[arg-type, return-value]
    ],
    ids=lambda given: type(given).__name__,  # printing one of them takes extremely long
)
def test_what_stands_for_no_json_is_refused(given: Any, code: str) -> None:
    with pytest.raises(UnprocessableError) as refused:
        check_json(given)
    assert refused.value.code == code
