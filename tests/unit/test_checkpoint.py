"""Checkpoints: what is refused, and that reading and writing go in small steps."""

import pytest

from rebaser_core.checkpoint import CHUNK, CheckpointReader, read_checkpoint, write_checkpoint
from rebaser_core.commit import Commit, Kind
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.payload import CBOR, dumps
from rebaser_core.state import ChangeSetState
from rebaser_core.updates import Derive, Set
from tests.wire.examples import parts

HEADER = {"format": "rebaser-checkpoint", "version": 1, "last": 3, "covers": 3, "applied": None}
CELLS = ["cells", ["a", "b"], "os", [1, None], [], [[1, "sum", {"values": ["a", "z"]}, {}]]]
END = ["end", 2, 0, 0, 0]


def sequence(*items: object) -> bytes:
    return b"".join(dumps(CBOR, item) for item in items)


def test_an_empty_state_comes_back_empty() -> None:
    state = ChangeSetState()
    with state.view() as view:
        restored = read_checkpoint(b"".join(write_checkpoint(state, view)))
    assert parts(restored) == parts(state)


def test_edges_are_rebuilt_from_definitions() -> None:
    state = read_checkpoint(sequence(HEADER, CELLS, END))
    assert state.cells.dependents("a") == state.cells.dependents("z") == ["b"]
    assert state.cells["b"].inputs == ("a", "z")


def test_a_large_state_is_written_and_read_in_parts() -> None:
    state = ChangeSetState()
    count = 2 * CHUNK + 1
    state.fold(1, Commit("c", 0, Kind.REBASE, 0, "o", None, None, delta=tuple(Set(str(n), n) for n in range(count))))
    with state.view() as view:
        chunks = list(write_checkpoint(state, view))
    assert len(chunks) == 5  # header, three parts of cells, trailer
    reader = CheckpointReader(b"".join(chunks))
    assert sum(1 for _ in reader) == len(chunks)
    assert reader.state.cells == state.cells


def test_equal_formulas_are_one_object_in_memory() -> None:
    state = ChangeSetState()
    updates = tuple(Derive(f"n{n}", "cel", {"x": "a"}, {"expr": "x * 2"}) for n in range(3))
    state.fold(1, Commit("c", 0, Kind.REBASE, 0, "o", None, 0, delta=updates))
    with state.view() as view:
        restored = read_checkpoint(b"".join(write_checkpoint(state, view)))
    assert restored.cells == state.cells
    assert len({id(cell.definition.params) for cell in restored.cells.values() if cell.definition}) == 1


def test_a_state_is_not_given_before_it_is_whole() -> None:
    reader = CheckpointReader(sequence(HEADER, CELLS, END))
    next(iter(reader))
    with pytest.raises(UnprocessableError):
        _ = reader.state


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
