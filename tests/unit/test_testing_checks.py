"""`check_function` finds what is wrong with a function, and the strategies make updates that servers accept."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser.dvu.functions import Function, FunctionError
from rebaser.testing import check_function, strategies
from rebaser_client import Derive, State, UnprocessableError, Update
from rebaser_core.definitions import check_definition
from rebaser_core.updates import check_id, check_updates
from rebaser_core.values import Json, check_json

PRICES = [{"price": 8.0}, {"price": 2.5}, {"price": 0.0}]


def discounted(inputs: Any, params: Any) -> Any:
    return np.asarray(inputs["price"], np.float64) * (1 - params["discount"])


def one(inputs: Any, params: Any) -> Any:
    return inputs["price"] * (1 - params["discount"])


def test_a_sound_function_gives_its_results() -> None:
    for function in (one, Function(name="d", vector=discounted), Function(name="d", call=one, vector=discounted)):
        found = check_function(function, PRICES, {"discount": 0.5})
        assert [value.value for value in found] == [4.0, 1.25, 0.0]
        assert {value.state for value in found} == {State.OK}
    assert check_function(one, []) == []


def test_lists_of_ids_and_all_inputs_at_once() -> None:
    def longest(inputs: Any, _: Any) -> Any:
        return [max(inputs["texts"], key=len), inputs["rest"]]

    assert check_function(longest, [{"texts": ("a", "bb"), "rest": [1]}])[0].value == ["bb", [1]]
    total = Function(name="total", call=lambda values, _: len(values), takes="values")
    assert [value.value for value in check_function(total, [{"x": (1, 2), "y": 3}, {"x": 1}, {}])] == [3, 1, 0]
    columns = Function(name="c", vector=lambda inputs, _: inputs["x"][0] + inputs["x"][1])
    assert check_function(columns, [{"none": (), "x": (1, 2)}])[0].value == 3


def test_an_error_is_a_value() -> None:
    def strict(inputs: Any, _: Any) -> Any:
        if inputs["x"] is None:
            raise FunctionError("x is not set", "unset_x")
        return inputs["x"]["key"]

    first, second, third = check_function(strict, [{"x": None}, {"x": {}}, {"x": {"key": 1}}])
    assert (first.state, first.error and (first.error.code, first.error.message)) == (
        "error",
        ("unset_x", "x is not set"),
    )
    assert second.error is not None
    assert second.error.code == "failed"
    assert third.value == 1
    [infinite] = check_function(lambda _, __: float("inf"), [{"x": 1}])
    assert infinite.error is not None
    assert infinite.error.code == "not_finite"


def test_an_error_in_a_batch_concerns_one_value() -> None:
    def inverse(inputs: Any, _: Any) -> Any:
        if not np.all(inputs["x"]):
            raise FunctionError("x is 0")
        return 1 / np.asarray(inputs["x"], np.float64)

    found = check_function(Function(name="inverse", vector=inverse), [{"x": 4.0}, {"x": 0.0}])
    assert [value.state for value in found] == ["ok", "error"]


counter = itertools.count()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda _, __: next(counter), "not the same when it is called again"),
        (
            Function(name="f", call=lambda i, _: i["price"], vector=lambda i, _: i["price"] + 1),
            "many times in one call",
        ),
        (
            Function(
                name="f", call=lambda i, _: int(i["price"]), vector=lambda i, _: [float(int(p)) for p in i["price"]]
            ),
            "first 8, then 8.0",
        ),
        (
            Function(name="f", call=lambda i, _: i["price"] <= 0, vector=lambda i, _: i["price"] == np.min(i["price"])),
            "many times in one call: first False, then True",
        ),
        (Function(name="f", vector=lambda i, _: i["price"] - np.min(i["price"])), "together with the other cases:"),
        (Function(name="f", call=lambda i, _: 1.0, vector=lambda i, _: [1.0]), "failed for values .*expected 20"),
        (Function(name="f", call=lambda i, _: 1.0, vector=lambda i, _: i["prize"]), "failed for values .*prize"),
    ],
)
def test_what_is_wrong_is_found(function: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_function(function, PRICES)


def test_a_case_with_an_error_hides_nothing_in_the_others() -> None:
    def vector(inputs: Any, _: Any) -> Any:
        if not isinstance(inputs["x"], np.ndarray):
            raise TypeError("x is no array")
        return inputs["x"] + 1

    mixed = Function(name="f", call=lambda inputs, _: inputs["x"] + 1, vector=vector)
    cases: list[dict[str, Any]] = [{"x": 1}, {"x": 2.5}, {"x": "text"}]
    for count in (2, 3):
        with pytest.raises(AssertionError, match="the vector form of 'f' failed"):
            check_function(mixed, cases[:count])


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UnprocessableError, match="not a JSON value"):
        check_function(one, [{"price": {1}}])
    with pytest.raises(UnprocessableError):
        check_function(one, PRICES, {"discount": float("nan")})
    with pytest.raises(ValueError, match="already a function 'sum'"):
        check_function(Function(name="sum", call=one), PRICES)


@given(strategies.values())
def test_any_value_can_be_stored(value: Json) -> None:
    assert check_json(value) == value


@given(strategies.ids())
def test_any_id_is_valid(id_: str) -> None:
    assert check_id(id_) == id_


@given(st.lists(strategies.updates()))
def test_any_updates_are_accepted(updates: list[Update]) -> None:
    assert check_updates(updates) == tuple(updates)
    for update in updates:
        check_definition(update)


def test_updates_of_every_kind_occur() -> None:
    @given(st.lists(strategies.updates(), min_size=40))
    def collect(updates: list[Update]) -> None:
        kinds.update(type(update).__name__ for update in updates)
        functions.update(update.function for update in updates if isinstance(update, Derive))

    kinds: set[str] = set()
    functions: set[str] = set()
    collect()
    assert kinds == {"Set", "Derive", "Unset", "Remove"}
    assert len(functions) > 1
