"""Tests how many unknown functions the header of a commit names."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set.known_functions import MAX_NAMED, MAX_NAMED_CHARACTERS, any_available, missing_functions


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["b", "a"], ["a", "b"]),
        ([f"f{at:03}" for at in range(MAX_NAMED + 5)], [f"f{at:03}" for at in range(MAX_NAMED)]),
        (
            [letter * (MAX_NAMED_CHARACTERS // 2) for letter in "abc"],
            [letter * (MAX_NAMED_CHARACTERS // 2) for letter in "ab"],
        ),
        ([], []),
    ],
)
def test_no_more_are_named_than_a_header_holds(names: list[str], named: list[str]) -> None:
    state = SimpleNamespace(cells=SimpleNamespace(unknown_functions=lambda _: set(names)))
    assert missing_functions(cast("Any", state)) == tuple(named)


def test_one_that_is_here_now_is_enough() -> None:
    assert any_available(("nobody has it", "sum"))
    assert not any_available(("nobody has it",))
    assert not any_available(())
