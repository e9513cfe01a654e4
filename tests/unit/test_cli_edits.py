"""Options of the command line become updates, or one clear error."""

import re
from collections.abc import Sequence

import pytest
import typer

from rebaser.cli.sending.edits import parse_edits
from rebaser_core.cel import formulas
from rebaser_core.errors import UnprocessableError
from rebaser_core.updates import Derive, Match, Remove, Set, Unset


def names_in(expression: str) -> list[str]:
    if "(" in expression:
        raise UnprocessableError("column 1: no")
    return re.findall(r"[a-z_][a-z0-9_]*", expression)


def parse(
    sets: Sequence[str] = (),
    derives: Sequence[str] = (),
    unsets: Sequence[str] = (),
    removes: Sequence[str] = (),
    inputs: Sequence[str] = (),
) -> list[object]:
    return list(parse_edits(sets, derives, unsets, removes, names_in, inputs=inputs))


def complaint(**options: Sequence[str]) -> str:
    with pytest.raises(typer.BadParameter) as caught:
        parse(**options)
    return f"{caught.value.param_hint}: {caught.value.message}"


def test_each_option_becomes_its_update() -> None:
    assert parse(["a=1", 'n="x=y"'], ["t=a * n"], ["u"], ["r"]) == [
        Set("a", 1),
        Set("n", "x=y"),
        Derive("t", "cel", {"a": "a", "n": "n"}, {"expr": "a * n"}),
        Unset("u"),
        Remove("r"),
    ]


def test_numbers_keep_their_type() -> None:
    values = [update.value for update in parse(["a=1", "b=1.0", "c=true"]) if isinstance(update, Set)]
    assert [type(value) for value in values] == [int, float, bool]


def test_text_without_quotes_gets_the_right_spelling_suggested() -> None:
    assert """--set name='"text"'""" in complaint(sets=["name=text"])
    assert """--set 'my name'='"it'"'"'s"'""" in complaint(sets=["my name=it's"])


@pytest.mark.parametrize(
    "text", ["a=NaN", "a=1e999", "a=" + "[" * 5000, "a=9223372036854775808", 'a={"x":1,"x":2}', "a="]
)
def test_what_no_value_can_be_is_refused(text: str) -> None:
    assert complaint(sets=[text]).startswith("--set: ")


def test_an_option_without_its_parts_says_what_to_write() -> None:
    assert "ID=JSON" in complaint(sets=["a"])
    assert "ID=EXPR" in complaint(derives=["a"])
    assert "ID=EXPR" in complaint(derives=["a="])
    assert "id is missing" in complaint(sets=["=1"])
    assert "id is missing" in complaint(unsets=[""])


def test_a_formula_that_cannot_be_read_names_the_value() -> None:
    assert complaint(derives=["a=("]) == "--derive: formula of 'a': column 1: no"


def test_two_edits_of_one_id_have_no_order_and_are_refused() -> None:
    assert "edited twice" in complaint(sets=["a=1"], removes=["a"])
    assert "edited twice" in complaint(sets=["a=1", "a=2"])


def test_bytes_that_are_no_text_are_refused() -> None:
    assert complaint(sets=['a="\udcff"']).startswith("--set: ")
    assert complaint(removes=["\udcff"]).startswith("--remove: ")


def formula(derive: str, *inputs: str) -> tuple[object, object]:
    [update] = parse_edits((), [derive], (), (), formulas.names_in, inputs=inputs)
    assert isinstance(update, Derive)
    return update.params["expr"], update.inputs


def test_an_id_in_backticks_is_an_input() -> None:
    assert formula("cart/total=`cart/1/price` * 2") == ("cart_1_price * 2", {"cart_1_price": "cart/1/price"})
    assert formula("t=`1/a` + `1/a` + `in`") == (
        "_1_a + _1_a + in_value",
        {"_1_a": "1/a", "in_value": "in"},
    )


def test_names_that_are_made_up_collide_with_nothing() -> None:
    assert formula("t=`a/b` + a_b + `a-b`") == ("a_b_2 + a_b + a_b_3", {"a_b_2": "a/b", "a_b": "a_b", "a_b_3": "a-b"})
    made, inputs = formula("t=[1].map(a_b, a_b + `a/b`)")
    assert (made, inputs) == ("[1].map(a_b, a_b + a_b_2)", {"a_b_2": "a/b"})


def test_backticks_in_text_comments_and_fields_are_not_ids() -> None:
    for text in ("'`a`' + b", r"'\'`a`' + b", 'r"\\d" + b + "`a`"', "b // `a`", "b.`a`", "'''it's `a`''' + b"):
        assert formula(f"t={text}") == (text, {"b": "b"})


def test_a_pattern_in_backticks_is_a_list() -> None:
    assert formula("t=size(`cart/*/price`)") == ("size(cart_price)", {"cart_price": Match("cart/*/price")})


def test_an_input_names_what_a_formula_uses() -> None:
    assert formula("t=p * 2", "p=cart/1/price") == ("p * 2", {"p": "cart/1/price"})
    assert formula("t=size(p)", "p=a/*") == ("size(p)", {"p": Match("a/*")})
    assert formula("t=size(p) + q", "p=a", "p=b=c") == ("size(p) + q", {"p": ("a", "b=c"), "q": "q"})


def test_inputs_that_nothing_uses_or_that_are_none_are_refused() -> None:
    assert "no formula of --derive uses 'p'" in complaint(derives=["t=q"], inputs=["p=a"])
    assert "NAME=ID" in complaint(derives=["t=q"], inputs=["q"])
    assert "letters, digits" in complaint(derives=["t=q"], inputs=["a/b=q"])
    assert "id is missing" in complaint(derives=["t=`` + 1"])


def test_a_wrong_formula_is_told_as_it_was_read() -> None:
    with pytest.raises(typer.BadParameter, match=r"read as 'a_b \*'\): line 1"):
        formula("t=`a/b` *")
