"""Checkpoints of version 1: which ones are refused."""

import pytest

from rebaser_core.checkpoint import read_checkpoint
from rebaser_core.encoding.payload import CBOR, dumps
from rebaser_core.errors import UnprocessableError, UnsupportedVersion

HEADER = {"format": "rebaser-checkpoint", "version": 1, "last": 3, "covers": 3, "applied": None}
CELLS = ["cells", ["a", "b"], "os", [1, None], [], [[1, "sum", {"values": ["a", "z"]}, {}]]]
END = ["end", 2, 0, 0, 0]


def sequence(*items: object) -> bytes:
    return b"".join(dumps(CBOR, item) for item in items)


def test_edges_are_rebuilt_from_definitions() -> None:
    state = read_checkpoint(sequence(HEADER, CELLS, END))
    # May be later than the real definition, never earlier.
    assert state.defined_by(next(iter(state.cells))) == state.last > 0
    assert state.cells.dependents("a") == state.cells.dependents("z") == ["b"]
    assert state.cells["b"].inputs == ("a", "z")


def test_equal_formulas_are_one_object_in_memory() -> None:
    definitions = [[at, "cel", {"x": "a"}, {"expr": "x * 2"}] for at in range(2)]
    cells = read_checkpoint(sequence(HEADER, ["cells", ["a", "b"], "oo", [1, 2], [], definitions], END)).cells
    assert len({id(cell.definition.params) for cell in cells.values() if cell.definition}) == 1


def test_a_newer_format_is_left_to_a_newer_program() -> None:
    with pytest.raises(UnsupportedVersion):
        read_checkpoint(sequence(HEADER | {"version": 2}, ["something new"]))


@pytest.mark.parametrize(
    "items",
    [
        [],
        [7],
        [HEADER | {"format": "other"}],
        [HEADER | {"last": -1}, CELLS, END],
        [HEADER | {"applied": ["s"]}, CELLS, END],
        [HEADER, CELLS],
        [HEADER, END],
        [HEADER, CELLS, CELLS, ["end", 4, 0, 0, 0]],
        [HEADER, CELLS, END, CELLS],
        [HEADER, ["more"], CELLS, END],
        [HEADER, [], CELLS, END],
        [HEADER, [["cells"]], CELLS, END],
        [HEADER, CELLS[:5], END],
        [HEADER, ["cells", ["a"], "oo", [1, 2], [], []], END],
        [HEADER, ["cells", ["a"], "o", [1, 2], [], []], END],
        [HEADER, ["cells", ["a", "b"], "ox", [1, 2], [], []], END],
        [HEADER, ["cells", ["a", 7], "oo", [1, 2], [], []], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2**64], [], []], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, b""], [], []], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, float("nan")], [], []], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [[2, "failed", "", "a"]], []], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [[1, "failed", None, "a"]], []], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [], [[2, "sum", {}, {}]]], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [], [[1, "sum", {}, []]]], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [], [[1, "sum", {b"x": "a"}, {}]]], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [], [[1, "sum", {"x": ["a", 1]}, {}]]], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [], [[1, "sum", {"x": "a"}, {"n": b""}]]], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [], [[1, "sum", {"x": "a"}, {b"n": "x"}]]], END],
        [HEADER, ["cells", ["a", "b"], "oo", [1, 2], [], [[True, "sum", {}, {}]]], END],
        [HEADER, CELLS, ["roots", ["a"], []], END],
        [HEADER, CELLS, ["roots", ["a"], [-1]], ["end", 2, 1, 0, 0]],
        [HEADER, CELLS, ["outcomes", [[1, 2]]], END],
        [HEADER, CELLS, ["outcomes", [[1, 2, [3, "r", "success", "many"]]]], ["end", 2, 0, 1, 0]],
        [HEADER, CELLS, ["attempts", [[1, 2, None]]], ["end", 2, 0, 0, 1]],
    ],
    ids=lambda items: repr(items)[-60:],
)
def test_what_is_no_whole_checkpoint_is_refused(items: list[object]) -> None:
    with pytest.raises(UnprocessableError) as caught:
        read_checkpoint(sequence(*items))
    assert caught.value.code == "malformed"
