"""Formulas: integers and doubles can be mixed, faults give reasons, and no formula takes unbounded time or memory."""

import contextlib
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser.dvu.cel import evaluate as cel
from rebaser.dvu.cel.evaluate import FormulaError, evaluate
from rebaser_core.cel.formulas import names_in, problem
from rebaser_core.errors import UnprocessableError
from rebaser_core.values import Json, same


@pytest.mark.parametrize(
    ("expression", "inputs", "result"),
    [
        # one number is 3 and the other 3.5
        ("a * b", {"a": 3, "b": 3.5}, 10.5),
        ("a * b", {"a": 3.5, "b": 3}, 10.5),
        ("a + 1", {"a": 3.5}, 4.5),
        ("1 - a", {"a": 3.5}, -2.5),
        ("a + 1", {"a": 3}, 4),
        ("a + 1.0", {"a": 3}, 4.0),
        ("1 + 2.5", {}, 3.5),
        ("a > 1", {"a": 3.5}, True),
        ("a < 3.5", {"a": 3}, True),
        ("a == 3", {"a": 3.0}, True),
        ("a != 3.0", {"a": 3}, False),
        ("1 == 1.0", {}, True),
        ("a in [1, 2]", {"a": 1.0}, True),
        ("a > 3 ? a : 0", {"a": 3.5}, 3.5),
        ("a > 3 ? a : 0", {"a": 3}, 0),
        ("price / (1 + vat)", {"price": 119, "vat": 0.19}, 100.0),
        ("x.map(i, i * 2)", {"x": [1, 1.5]}, [2, 3.0]),
        ("x.exists(i, i > 2)", {"x": [1, 2.5]}, True),
        ("x.filter(i, i >= 2).map(i, i + 0.5)", {"x": [1, 2, 3]}, [2.5, 3.5]),
        ("m.a + m.b", {"m": {"a": 1, "b": 0.5}}, 1.5),
        ("size(x) / 2.0", {"x": [1, 2, 3]}, 1.5),
        ("size(x) > 2.5", {"x": [1, 2, 3]}, True),
        ("-a", {"a": 3}, -3),
        # division
        ("7 / 2", {}, 3.5),
        ("6 / 2", {}, 3),
        ("6 / 2.0", {}, 3.0),
        ("-7 / 2", {}, -3.5),
        ("a / b / c", {"a": 12, "b": 3, "c": 2}, 2),
        ("x.map(i, i / 2)", {"x": [1, 2]}, [0.5, 1]),
        # remainder
        ("7 % 3", {}, 1),
        ("-7 % 3", {}, -1),
        ("7.5 % 2", {}, 1.5),
        ("-7 % 3.0", {}, -1.0),
        # indexes
        ("x[0]", {"x": [1.5, 2]}, 1.5),
        ("x[1]", {"x": [1.5, 2]}, 2),
        ("x[i]", {"x": [5, 6], "i": 1.0}, 6),
        ("x[4 / 2]", {"x": [5, 6, 7]}, 7),
        # text that looks like code
        ("'_/_' + a", {"a": "#/#"}, "_/_#/#"),
        ("'1 / 2' // 3 / 4", {}, "1 / 2"),
        (r"'it\'s 1/2'", {}, "it's 1/2"),
        ("r'\\d/\\d'", {}, "\\d/\\d"),
        ("size('é😀')", {}, 2),
        # other types
        ("a", {"a": None}, None),
        ("a == null", {"a": None}, True),
        ("[a, {'b': a}]", {"a": None}, [None, {"b": None}]),
        ("{'a': [1, 2.5, true]}", {}, {"a": [1, 2.5, True]}),
        ("has(m.a) ? m.a : 'none'", {"m": {}}, "none"),
        ("1u + 2u", {}, 3),
        ("type(a) == int", {"a": 1}, True),
        ("int(3.7) + double('1.5')", {}, 4.5),
        ("a || b / 0 == 1", {"a": True, "b": 1}, True),
        # functions
        ("math.round(a)", {"a": 2.5}, 3.0),
        ("math.round(a)", {"a": -2.5}, -3.0),
        ("math.round(a)", {"a": 0.49999999999999994}, 0.0),
        ("math.round(a)", {"a": 3}, 3),
        ("math.ceil(a) + math.floor(a)", {"a": 1.5}, 3.0),
        ("math.ceil(a)", {"a": 3}, 3),
        ("math.abs(a)", {"a": -2}, 2),
        ("math.sqrt(4)", {}, 2.0),
        ("math.greatest(a, 2.5)", {"a": 3}, 3),
        ("math.least(a, 2.5)", {"a": 3}, 2.5),
    ],
)
def test_what_comes_out(expression: str, inputs: dict[str, Json], result: Json) -> None:
    found = evaluate(inputs, expression)
    assert same(found, result), found


@pytest.mark.parametrize(
    ("expression", "inputs", "code", "message"),
    [
        ("a / b", {"a": 1, "b": 0}, "failed", "divide by zero"),
        ("a / b", {"a": 1.0, "b": 0.0}, "failed", "divide by zero"),
        ("a % 0", {"a": 1.5}, "failed", "modulus by zero"),
        ("a % 0", {"a": 1}, "failed", "modulus by zero"),
        ("m.b", {"m": {}}, "failed", 'Key not found in map : "b"'),
        ("x[2]", {"x": [1]}, "failed", "index"),
        ("a + 1", {"a": "x"}, "failed", r"_\+_\(string, int64\)"),
        ("a / 1", {"a": "x"}, "failed", r"_/_\(string, int64\)"),
        ("foo(a)", {"a": 1}, "failed", r"foo\(int64\)"),
        ("a ? 1 : 2", {"a": 1}, "failed", "No matching overload"),
        ("math.sqrt(-1)", {}, "failed", "negative"),
        ("a + 1", {"a": 2**63 - 1}, "overflow", "integer overflow"),
        ("a * a", {"a": 2**40}, "overflow", "integer overflow"),
        ("a / -1", {"a": -(2**63)}, "overflow", "integer overflow"),
        ("math.abs(a)", {"a": -(2**63)}, "overflow", "integer overflow"),
        ("a +", {"a": 1}, "failed", "line 1, column 4: Syntax error"),
        ("a\n+ )", {"a": 1}, "failed", "line 2, column 3: Syntax error"),
        ("", {}, "failed", "Syntax error"),
        ("package", {}, "failed", "reserved identifier"),
        ("a + b", {"a": 1}, "failed", "names 'b', which is not an input"),
        ("[1].map(x, x + y)", {"x": 1}, "failed", "names 'y'"),
        ("a", {"a": 1, "b/c": 2}, "failed", "input name 'b/c' cannot be used"),
        ("a", {"a": 1, "in": 2}, "failed", "input name 'in' cannot be used"),
        ("a", {"a": 1, "é": 2}, "failed", "cannot be used"),
        ("b'x'", {}, "failed", "type bytes"),
        ("timestamp('2020-01-01T00:00:00Z')", {}, "failed", "type timestamp"),
        ("duration('1s')", {}, "failed", "type duration"),
        ("[type(1)]", {}, "failed", "type type"),
        ("google.protobuf.Int32Value{value: 3}", {}, "failed", "messages"),
        (None, {}, "failed", "the parameter 'expr' must"),
        (7, {}, "failed", "the parameter 'expr' must"),
    ],
)
def test_a_fault_says_why(expression: Any, inputs: dict[str, Json], code: str, message: str) -> None:
    for _ in range(2):  # the second evaluation uses the cache
        with pytest.raises(FormulaError, match=message) as caught:
            evaluate(inputs, expression)
        assert caught.value.code == code
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "inputs", "message"),
    [
        ("'" + "x" * 9000 + "'", {}, "longer than 8192"),
        ("'\ud800'", {}, "not valid Unicode text"),
        ("(" * 200 + "1" + ")" * 200, {}, "deeper than 32"),
        ("[" * 200 + "]" * 200, {}, "deeper than 32"),
        ("+".join(["a"] * 100), {"a": 1}, "deeper than 32"),
        ("x.exists(i, x.exists(j, i + j < 0))", {"x": list(range(500))}, "more than 10000 iterations"),
        ("[s]" + ".map(x, x + x)" * 14, {"s": "ab"}, "could produce a value of more than"),
        ("[s]" + ".map(x, [x, x])" * 14, {"s": "ab"}, "could produce a value of more than"),
        ("x.map(i, s + 'x')", {"x": list(range(9000)), "s": "x" * 200_000}, "could produce a value of more than"),
        ("(" + "+".join(["s"] * 30) + ")", {"s": "x" * 200_000}, "result is larger"),
        ("x.map(i, x.map(j, x.map(k, s)))", {"x": list(range(20)), "s": "x" * 1000}, "result is larger"),
        ("x.map(i, x.map(j, x))", {"x": list(range(95))}, "result is larger"),
    ],
)
def test_nothing_explodes(expression: str, inputs: dict[str, Json], message: str) -> None:
    with pytest.raises(FormulaError, match=message):
        evaluate(inputs, expression)


def test_a_null_result_keeps_none_alive() -> None:
    """In cel-expr-python 0.1.3, `value()` of a null drops a reference to None; after some thousand calls, the process
    crashes."""
    formulas = ["a", "[a]", "{'x': a}", "[[a], {'y': [a]}]", "x.map(i, i)", "a == null"]
    inputs: dict[str, Json] = {"a": None, "x": [None]}
    for formula in formulas:
        evaluate(inputs, formula)
    before = sys.getrefcount(None)
    for _ in range(1000):
        for formula in formulas:
            evaluate(inputs, formula)
    assert sys.getrefcount(None) > before - 500


numbers = st.one_of(st.integers(-(2**40), 2**40), st.floats(-1e15, 1e15), st.sampled_from([0, 1, -1, 0.5, 2.0]))


@settings(deadline=None)
@given(numbers, numbers, st.sampled_from("+-*/"))
def test_arithmetic_is_that_of_python(left: float, right: float, operator: str) -> None:
    """Except that `/` of integers gives an integer if it comes out even, and that integers have at most 64 bits."""
    whole = isinstance(left, int) and isinstance(right, int)
    impossible = right == 0 if operator == "/" else whole and operator == "*" and not -(2**63) <= left * right < 2**63
    if impossible:
        with pytest.raises(FormulaError):
            evaluate({"a": left, "b": right}, f"a {operator} b")
        return
    found = evaluate({"a": left, "b": right}, f"a {operator} b")
    even = operator == "/" and whole and left % right == 0
    quotient = 0 if not right else left // right if even else left / right
    assert same(found, {"+": left + right, "-": left - right, "*": left * right, "/": quotient}[operator])


@settings(deadline=None)
@given(numbers, numbers)
def test_a_number_being_3_or_3_0_never_decides_whether_a_formula_works(left: float, right: float) -> None:
    def outcome(a: float, b: float) -> object:
        try:
            found = evaluate({"a": a, "b": b, "x": [a, b]}, "a > b ? a * 2 + b / 4 - x[0] : x[1] - a")
        except FormulaError as error:
            return str(error)
        assert isinstance(found, (int, float))
        return float(found)

    if all(isinstance(number, int) and abs(number) < 2**50 for number in (left, right)):
        assert outcome(left, right) == outcome(float(left), right) == outcome(left, float(right))


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("price * qty", ["price", "qty"]),
        ("b + a + b", ["b", "a"]),
        ("1 + 2", []),
        ("a.b.c + m['k']", ["a", "m"]),
        ("x.map(i, i + k)", ["x", "k"]),
        ("x.map(i, y.map(j, i + j + z))", ["x", "y", "z"]),
        ("i + x.map(i, i)[0]", ["i", "x"]),
        ("has(m.a) ? 'a.b' : b", ["m", "b"]),
        ("int(a) + size(b) + math.ceil(c)", ["a", "b", "c"]),
        ("type(a) == string", ["a"]),
        ("a.startsWith(b)", ["a", "b"]),
        ("{'k': v, w: 1}", ["v", "w"]),
        ("[a, [b]]", ["a", "b"]),
        ("!a && -b > 0", ["a", "b"]),
        ("x.all(i, i > 0) || x.exists_one(j, j == y)", ["x", "y"]),
    ],
)
def test_free_names_are_found_in_order_of_appearance(expression: str, names: list[str]) -> None:
    assert names_in(expression) == names


def test_what_was_said_of_other_inputs_does_not_count() -> None:
    expression = "first + second"
    for _ in range(2):
        assert problem(expression, ("first", "second")) == ""
        assert problem(expression, ("first",)).startswith("the formula names 'second', which is not an input")
        assert problem(expression, ("first", "second", "in")).startswith("input name 'in' cannot be used")
    assert names_in(".first + .second") == ["first", "second"]


@pytest.mark.parametrize("expression", ["a +", "a b", "", "1 +* 2", "x" * 9000, "package"])
def test_a_formula_that_is_none_is_unprocessable(expression: str) -> None:
    with pytest.raises(UnprocessableError) as caught:
        names_in(expression)
    assert caught.value.code == "invalid_formula"


def test_compiled_formulas_are_bounded() -> None:
    size = cel._compile.cache_info().maxsize
    assert size is not None
    for at in range(size + 10):
        evaluate({}, str(at))
    assert cel._compile.cache_info().currsize == size


@settings(deadline=None)
@given(st.text(alphabet="ab12.+-*/%()[]{}?:<>=!&|'\"\\ ,x", max_size=30))
def test_any_text_gives_a_value_or_a_fault(expression: str) -> None:
    with contextlib.suppress(FormulaError):
        evaluate({"a": 1, "b": "t", "x": [1, 2.5]}, expression)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("'a,b,c'.split(',')", ["a", "b", "c"]),
        ("words.join(', ')", "one, two"),
        ("words.map(one, one.upperAscii()).join('-')", "ONE-TWO"),
        ("'aXbX'.replace('X', words[0])", "aonebone"),
        ("'aXbX'.replace('X', '-', 1)", "a-bX"),
        ("words.map(one, one.replace('o', '0') + '!')", ["0ne!", "tw0!"]),
        ("'%s is %.2f'.format([words[0], 2.5])", "one is 2.50"),
        ("words[0].substring(1).indexOf('e') + 'ABC'.lowerAscii().lastIndexOf('c')", 3),
        ("' a '.trim().charAt(0) + 'ab'.reverse()", "aba"),
        ("m.?there.orValue(1) + m.?missing.orValue(2)", 9),
        ("optional.of(1).value() + m[?'missing'].orValue(1)", 2),
        ("{?'a': m.?missing, ?'b': m.?there}", {"b": 7}),
    ],
)
def test_strings_and_optional_fields(expression: str, wanted: object) -> None:
    inputs = {"words": ["one", "two"], "m": {"there": 7}}
    names = names_in(expression)
    assert set(names) <= inputs.keys()
    assert cel.evaluate({name: inputs[name] for name in names}, expression) == wanted  # type: ignore[misc]


@pytest.mark.parametrize(
    "expression",
    [
        "a.replace('', b)",
        "a.replace('x', b).replace('x', b)",
        "a.split('').join('----------').split('').join('----------').split('').join('----------')",
        "a.split('').map(c, a.split(''))",
        "a.split('').map(c, a.upperAscii())",
        "a.split('').map(c, '%.1000f'.format([1.0]))",
    ],
)
def test_text_that_would_grow_out_of_bounds_is_refused(expression: str) -> None:
    text = "x" * 100_000
    with pytest.raises(cel.FormulaError, match=r"too large|more than"):
        cel.evaluate(dict.fromkeys(names_in(expression), text), expression)


def test_a_separator_that_only_inputs_know_is_refused() -> None:
    with pytest.raises(cel.FormulaError, match="separator of join"):
        cel.evaluate({"a": ["x"], "b": "y"}, "a.join(b)")


def test_an_optional_is_no_value() -> None:
    with pytest.raises(cel.FormulaError, match="JSON does not have"):
        cel.evaluate({"a": {"b": 1}}, "a.?b")
