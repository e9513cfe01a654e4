"""The built-in functions and their results."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser.dvu.functions import FunctionError, builtins
from rebaser_core.values import Json, same

FUNCTIONS = builtins()
NAMED = {
    "sum", "product", "min", "max", "mean", "count", "concat", "format", "if", "object", "list", "lookup", "merge",
    "union", "keys", "values", "length", "join", "round", "abs", "coalesce", "cel", "by_id",
}  # fmt: skip


def call(name: str, *values: Any, **params: Any) -> Json:
    result: Json = FUNCTIONS[name].call(list(values), params)  # type: ignore[misc]
    return result


def named(name: str, inputs: dict[str, Any], **params: Any) -> Json:
    result: Json = FUNCTIONS[name].call(inputs, params)  # type: ignore[misc]
    return result


def test_all_are_there_and_say_what_they_do() -> None:
    assert FUNCTIONS.keys() == NAMED
    assert all(function.doc.endswith(".") and function.name == name for name, function in FUNCTIONS.items())


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("sum", [], 0),
        ("sum", [1, 2], 3),
        ("sum", [1, 2.0], 3.0),
        ("sum", [0.1] * 10, 1.0),
        ("sum", [1, None, [2, None], {"a": 3}], 6),
        ("sum", [None], 0),
        ("sum", [1e308, 1e308, -1e308], 1e308),
        ("product", [], 1),
        ("product", [2, 3, None], 6),
        ("product", [2, 0.5], 1.0),
        ("product", [2**62, 2, 2, 0], 0),
        ("product", [2**62, -2], -(2**63)),
        ("min", [], None),
        ("min", [None], None),
        ("min", [3, 1.5, [1]], 1),
        ("min", ["b", "a"], "a"),
        ("max", [3, 3.0], 3),
        ("max", [3.0, 3], 3.0),
        ("max", [["x", "yy"], None], "yy"),
        ("mean", [], None),
        ("mean", [1, 2], 1.5),
        ("mean", [2, 2], 2.0),
        ("mean", [2**63 - 1, 2**63 - 1], float(2**63)),
        ("count", [1, None, ["x", None], {"a": True}], 3),
        ("abs", [-3], 3),
        ("abs", [-3.5], 3.5),
        ("abs", [None], None),
        ("round", [2.5], 3.0),
        ("round", [-2.5], -3.0),
        ("round", [-0.4], 0.0),
        ("round", [7], 7),
        ("round", [None], None),
        ("round", [1e300], 1e300),
        ("round", [5e-324], 0.0),
        ("concat", [], ""),
        ("concat", ["a", 1, 1.5, True, None, ["b", "c"]], "a11.5truebc"),
        ("join", ["a", ["b"], 1], "a, b, 1"),
        ("coalesce", [None, 0, 1], 0),
        ("coalesce", [], None),
        ("list", [1, None, [2]], [1, None, [2]]),
        ("merge", [{"a": 1, "b": 1}, None, {"b": 2}], {"a": 1, "b": 2}),
        ("union", [["a", "b"], "a", None, [1, 1.0, True, "1"]], ["a", "b", 1, 1.0, True, "1"]),
        ("union", [[[1]], [[1]], [{"a": 1}], [{"a": 1}]], [[1], {"a": 1}]),
        ("keys", [{"b": 1, "a": 2}], ["a", "b"]),
        ("keys", [None], None),
        ("values", [{"b": 1, "a": 2}], [2, 1]),
        ("values", [None], None),
        ("length", ["é😀"], 2),
        ("length", [[1, 2]], 2),
        ("length", [{}], 0),
        ("length", [None], None),
    ],
)
def test_what_comes_out(name: str, values: list[Json], result: Json) -> None:
    found = call(name, *values)
    assert same(found, result), found


@pytest.mark.parametrize(
    ("digits", "value", "result"),
    [
        (2, 1.005, 1.01),
        (2, 2.675, 2.68),
        (1, 0.25, 0.3),
        (-2, 1250, 1300),
        (-2, 149.9, 100.0),
        (-2, -50, -100),
        (2, 7, 7),
    ],
)
def test_round_goes_by_what_a_user_wrote(digits: int, value: float, result: float) -> None:
    assert same(call("round", value, digits=digits), result)


@pytest.mark.parametrize(
    ("name", "values", "params", "message"),
    [
        ("sum", ["1"], {}, "text is not a number"),
        ("sum", [True], {}, "a boolean is not a number"),
        ("sum", [[[1]]], {}, "a list is not a number"),
        ("mean", [{"a": {"b": 1}}], {}, "a map is not a number"),
        ("min", [1, "a"], {}, "text is not a number"),
        ("abs", [1, 2], {}, "the function takes one input, not 2"),
        ("abs", [], {}, "the function takes one input, not 0"),
        ("round", [1], {"digits": 19}, "digits must be an integer"),
        ("round", [1], {"digits": True}, "digits must be an integer"),
        ("concat", [{"a": [1]}], {}, "a list is not text"),
        ("join", ["a"], {"separator": 1}, "separator must be text"),
        ("merge", [[1]], {}, "a list is not a map"),
        ("keys", ["a"], {}, "text is not a map"),
        ("values", [1], {}, "a number is not a map"),
        ("length", [1], {}, "a number has no length"),
    ],
)
def test_what_makes_no_sense_is_said(name: str, values: list[Json], params: dict[str, Json], message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        call(name, *values, **params)


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("sum", [1e308, 1e308], "not_finite"),
        ("product", [1e308, 10.0], "not_finite"),
        ("product", [2**62, 4], "overflow"),
        ("product", [3] * 100_000, "overflow"),
        ("concat", ["x" * 200_000] * 2, "too_large"),
        ("join", ["x"] * 200_000, "too_large"),
    ],
)
def test_what_would_explode_is_stopped(name: str, values: list[Json], code: str) -> None:
    with pytest.raises(FunctionError) as caught:
        call(name, *values)
    assert caught.value.code == code


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(-(2**60), 2**60), st.floats(-1e300, 1e300)), max_size=30), st.randoms())
def test_a_sum_of_doubles_does_not_depend_on_the_order(numbers: list[float], dice: Any) -> None:
    shuffled = list(numbers)
    dice.shuffle(shuffled)
    total = call("sum", *numbers)
    assert same(total, call("sum", *shuffled))
    if any(isinstance(number, float) for number in numbers):
        assert total == math.fsum(numbers)


# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "params", "result"),
    [
        ({"condition": True, "then": 1, "else": 2}, {}, 1),
        ({"condition": False, "then": 1, "else": 2}, {}, 2),
        ({"condition": None, "then": 1, "else": 2}, {}, 2),
        ({"condition": True}, {"then": "yes"}, "yes"),
        ({"condition": False, "then": 1}, {}, None),
        ({"condition": True, "then": None}, {"then": 1}, None),
    ],
)
def test_if_chooses(inputs: dict[str, Json], params: dict[str, Json], result: Json) -> None:
    assert same(named("if", inputs, **params), result)


def test_if_takes_no_number_for_true() -> None:
    with pytest.raises(FunctionError, match="condition is a number"):
        named("if", {"condition": 1})


def test_object_puts_inputs_on_top_of_params() -> None:
    assert named("object", {"a": 1, "b": [2]}, b=0, c=3) == {"a": 1, "b": [2], "c": 3}


@pytest.mark.parametrize(
    ("inputs", "params", "result"),
    [
        ({"in": {"a": 1}, "key": "a"}, {}, 1),
        ({"in": {"a": 1}}, {"key": "a"}, 1),
        ({"in": [5, 6], "key": 1}, {}, 6),
        ({"in": {"a": None}, "key": "a"}, {"default": 1}, None),
        ({"in": {"a": 1}, "key": "b"}, {"default": 2}, 2),
        ({"in": [5], "key": -1}, {"default": None}, None),
        ({"in": None, "key": "a"}, {"default": 3}, 3),
    ],
)
def test_lookup_finds(inputs: dict[str, Json], params: dict[str, Json], result: Json) -> None:
    assert same(named("lookup", inputs, **params), result)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"in": {"a": 1}, "key": "b"}, "there is no item at 'b'"),
        ({"in": [1], "key": 1}, "there is no item at '1'"),
        ({"in": [1], "key": True}, "cannot look up a boolean in a list"),
        ({"in": {"1": 1}, "key": 1}, "cannot look up a number in a map"),
        ({"in": 5, "key": 1}, "cannot look up a number in a number"),
        ({}, "there is no item at 'None'"),
    ],
)
def test_lookup_says_what_it_did_not_find(inputs: dict[str, Json], message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        named("lookup", inputs)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("{a} and {{b}}", "1 and {b}"),
        ("{a:>4}|{a:<3}|{a:05d}", "   1|1  |00001"),
        ("{f:.2f} {f:,.1f} {big:,}", "2.50 2.5 1,000,000"),
        ("{s:^5}|{t}|{n}|{f:.0%}", "  x  |true||250%"),
    ],
)
def test_format_fills_in(template: str, text: str) -> None:
    inputs = {"a": 1, "f": 2.5, "s": "x", "t": True, "n": None, "big": 1_000_000}
    assert named("format", inputs, template=template) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "template is missing"),
        ("{b}", "there is no input 'b'"),
        ("{}", "there is no input ''"),
        ("{0}", "there is no input '0'"),
        ("{a.__class__}", "there is no input 'a.__class__'"),
        ("{a[0]}", "there is no input"),
        ("{a!r}", "'r' is not a format"),
        ("{a:1000}", "'1000' is not a format"),
        ("{a:.100f}", "is not a format"),
        ("{a:{a}}", "is not a format"),
        ("{a:%Y}", "is not a format"),
        ("{a", "template: "),
        ("a}", "template: "),
        ("{a:s}", "template: "),
        ("{l}", "a list is not text"),
    ],
)
def test_format_reaches_nothing_but_the_inputs(template: Json, message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        named("format", {"a": 1, "l": [1]}, template=template)


def test_format_stays_within_bounds() -> None:
    with pytest.raises(FunctionError) as caught:
        named("format", {"a": 1}, template="{a:999}" * 300)
    assert caught.value.code == "too_large"


def test_cel_is_a_function_whose_faults_keep_their_code() -> None:
    assert named("cel", {"a": 3}, expr="a * 1.5") == 4.5
    with pytest.raises(FunctionError) as caught:
        named("cel", {"a": 2**62}, expr="a * 4")
    assert caught.value.code == "overflow"
