"""Tests which formulas become programs of compiled code, and which are left to Python."""

import pytest

from rebaser.dvu.compiled import instructions
from rebaser.dvu.compiled.translate import translate
from rebaser.dvu.functions import Function, builtins
from rebaser.dvu.wire.packet import DefinitionTemplate
from rebaser_core.values import Json

NAMES = (("a", -1), ("b", -1), ("c", -1))


def program(function: str, *inputs: tuple[str, int], **params: Json) -> instructions.Program | None:
    return translate(DefinitionTemplate(function, inputs, params), builtins()[function])


@pytest.mark.parametrize(
    ("expression", "doubles", "wholes"),
    [
        ("a + 1", True, True),
        ("(a * b + c) / 3", True, True),
        ("-a - math.abs(b)", True, True),
        ("a > b ? a : b", True, True),
        ("a > 1 && !(b < 2 || c == 3.5) ? a : -0.5", True, False),
        ("a > 1 && !(b < 2 || c == 3) ? a : -5", False, True),
        ("a > 0 ? true : b > 0", False, False),
        ("(a > 0) == true ? a : b", False, False),
        ("math.greatest(a, math.least(b, c))", True, True),
        ("a > b", False, False),
        ("1 + 2", False, True),
        ("a + 0.5", True, False),
        ("a > 1 ? 1 : b", False, True),
        ("a % b", False, True),
        ("int(a) + math.round(b)", False, True),
        ("double(a) + b", False, False),
        ("math.sqrt(a)", False, False),
        ("a == null ? 0.0 : a", False, False),
        ("a > 9007199254740993 ? a : b", False, True),
    ],
)
def test_formulas_over_numbers_are_programs(expression: str, doubles: bool, wholes: bool) -> None:
    """`doubles`, `wholes`: whether the program for only doubles or only integers, which is the fastest, is the same."""
    made = program("cel", *NAMES, expr=expression)
    assert made is not None
    assert (instructions.for_doubles(made) is not None) == doubles
    assert (instructions.for_integers(made) is not None) == wholes


@pytest.mark.parametrize(
    "expression",
    [
        "'text'",
        "[a][0]",
        "{'k': a}.k",
        "a in [1]",
        "1u + 2u",
        "size('x')",
        "a.b",
        "d",
        "a +",
        "string(a)",
        "[1].all(x, x > a)",
    ],
)
def test_what_is_not_about_numbers_is_left(expression: str) -> None:
    assert program("cel", *NAMES, expr=expression) is None


def test_lists_many_inputs_and_odd_params_are_left() -> None:
    assert program("cel", ("a", 2), expr="a") is None
    assert program("cel", ("a", 2), ("b", -1), expr="b") is not None
    assert program("cel", ("a", -1), ("b", instructions.INPUTS), expr="a") is None
    assert program("cel", ("a", -1)) is None
    assert program("cel", ("not a name", -1), expr="1") is None
    assert program("if", ("condition", 1)) is None
    assert program("if", ("condition", -1), then="text") is None
    assert program("coalesce", ("x", 3), default=[]) is None
    assert program("round", ("x", -1), digits=-1) is None
    assert program("concat", ("x", 2)) is None


def test_functions_of_all_inputs_are_programs_and_namesakes_are_not() -> None:
    for name in ("sum", "product", "mean", "min", "max", "count", "abs", "round", "coalesce"):
        assert program(name, ("x", 3)) is not None
    own = Function(name="sum", call=lambda *_: 1, takes="values")
    assert translate(DefinitionTemplate("sum", (), {}), own) is None
    assert translate(DefinitionTemplate("nope", (), {}), None) is None
