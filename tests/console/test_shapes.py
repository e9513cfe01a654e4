"""The texts of values that the console sends."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser.console.access.hiding import show_values
from rebaser.console.shapes import MAX_INPUTS, MAX_VALUE, cut, definition_object, json_lines, json_start, seen_text
from rebaser_core.updates import Derive

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture(scope="module", autouse=True)
def shown() -> None:
    show_values(True)


@given(TREES, st.integers(1, 30))
def test_the_start_of_a_value_is_that_of_its_json(value: object, most: int) -> None:
    assert json_start(value, most) == cut(seen_text(json.dumps(value, ensure_ascii=False)), most)


@given(TREES)
def test_the_text_of_a_value_means_the_value(value: object) -> None:
    assert json.loads(json_lines(value)) == value


@pytest.mark.parametrize("mark", ["\u202e", "\u2066", "\u200f", "\u200b", "\ufeff", "\u2028", "\u00ad"])
def test_no_value_looks_like_another_one(mark: str) -> None:
    """A mark that turns the order of characters, or takes no room, would show who reviews a branch another text."""
    value, escape = {f"a{mark}": [f"invoice{mark}fdp.exe"]}, f"\\u{ord(mark):04x}"
    formula = definition_object(Derive("a", "cel", {"x": "y"}, {"expr": f"x + '{mark}'"}))
    function = definition_object(Derive("a", "sum", {"x": "y"}, {"text": mark}))
    assert formula is not None
    assert function is not None
    for text in (json_start(value, 100), json_lines(value), formula["text"], function["text"], function["params"]):
        assert mark not in text
        assert escape in text


def test_joiners_stay_because_scripts_and_pictures_need_them() -> None:
    assert (
        json_start("\U0001f469\u200d\U0001f680 \u0645\u06cc\u200c\u062e", 100)
        == '"\U0001f469\u200d\U0001f680 \u0645\u06cc\u200c\u062e"'
    )


def test_the_rest_of_a_large_value_is_not_encoded() -> None:
    """A page has hundreds of values, each of which may be large."""

    class Numbers(list[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(100)
            pytest.fail("it went on")

    assert json_start(Numbers([1]), 20) == cut(json.dumps(list(range(100))), 20)


@pytest.mark.parametrize(
    ("definition", "whole"),
    [
        (Derive("a", "sum", {f"i{number}": "x" for number in range(MAX_INPUTS)}), True),
        (Derive("a", "sum", {f"i{number}": "x" for number in range(MAX_INPUTS + 1)}), False),
        (Derive("a", "sum", {"i": [f"x{number}" for number in range(MAX_INPUTS + 1)]}), False),
        (Derive("a", "sum", {"i": "x"}, {"text": "y" * MAX_VALUE}), False),
    ],
)
def test_it_is_told_whether_a_definition_is_sent_in_full(definition: Derive, whole: bool) -> None:
    found = definition_object(definition)
    assert found is not None
    assert (found["isWhole"], found["inputCount"]) == (whole, len(definition.inputs))
