"""The structure of a large change set: how it is sent to workers, is cached there, and names its values."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rebaser.dvu.planning import layout
from rebaser.dvu.planning.full_plan import FullGraphPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.wire.packet import read_packet
from rebaser.dvu.wire.structure import StructurePacket, decode
from rebaser.dvu.worker import structure_cache
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser_core.blobs.address import path_of
from rebaser_core.commit import Kind
from rebaser_core.errors import DvuError
from rebaser_core.messages.delta import decode_delta, encode_delta
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.updates import Set
from rebaser_core.values import State
from tests.support.graphs import Book
from tests.support.plans import total
from tests.support.whole_plans import WHOLE, update


def test_a_structure_in_the_workers_folder_need_not_travel(tmp_path: Path) -> None:
    book = Book([Set("a", 1), total("b", "a")])
    with book.state.view() as view:
        made = plan(view, WHOLE)
        assert isinstance(made, FullGraphPlan)
        assert made.unsent_structure is not None
        StructureCache(tmp_path / "of workers").write(made.unsent_structure.address, bytes(made.unsent_structure.data))
        made.mark_shared("")
        assert made.unsent_structure is None
        (packet,) = made.next_wave()  # type: ignore[unreachable]
        asked = decode(*read_packet(packet))
        assert isinstance(asked, StructurePacket)
        assert (len(asked.data), asked.store) == (0, "")
        made.absorb(evaluate_packet(packet, structures=StructureCache(tmp_path / "of workers")))
        assert [one.id for one in made.computed()] == ["b"]


@pytest.mark.parametrize("there", [True, False])
def test_a_structure_may_come_from_a_blob_store(tmp_path: Path, there: bool) -> None:
    book = Book([Set("a", 1), total("b", "a")])
    with book.state.view() as view:
        made = plan(view, WHOLE)
        assert isinstance(made, FullGraphPlan)
        assert made.unsent_structure is not None
        if there:
            path = tmp_path / path_of(made.unsent_structure.address)
            path.parent.mkdir(parents=True)
            path.write_bytes(made.unsent_structure.data)
        made.mark_shared(tmp_path.as_uri())
        waves = 0
        while packets := made.next_wave():
            waves += 1
            made.absorb(
                [part for packet in packets for part in evaluate_packet(packet, structures=StructureCache(None))]
            )
        assert waves == (1 if there else 2)  # 2 if the structure had to be sent
        assert [one.id for one in made.computed()] == ["b"]


@pytest.mark.parametrize("interpreted_max", [300, -1])
def test_what_is_written_names_the_values(interpreted_max: int) -> None:
    limits, kept = replace(WHOLE, interpreted_max=interpreted_max, ids_as_text_min_values=2), StructureCache(None)
    book = Book([total(f"größe {at}", f"x{at // 2}") for at in range(9)] + [Set(f"x{at}", at) for at in range(5)])
    for edited in ([0, 1, 2, 3, 4], [3, 1], [2]):
        book.edit(*[Set(f"x{at}", at + len(edited)) for at in edited])
        with book.state.view() as view:
            made = plan(view, limits)
            while packets := made.next_wave():
                made.absorb([part for packet in packets for part in evaluate_packet(packet, structures=kept)])
            table = made.computed()
            assert isinstance(table, ComputedTable)
            assert decode_delta(Kind.DVU, encode_delta(table)) == table
            assert {one.id for one in table} == {f"größe {at}" for at in range(9) if at // 2 in edited}
            book.commit(table, view.sequence)


def packed(book: Book) -> tuple[str, bytes]:
    with book.state.view() as view:
        asked = decode(*read_packet(plan(view, WHOLE).next_wave()[0]))
        assert isinstance(asked, StructurePacket)
        return asked.address, bytes(asked.data)


def test_a_structure_is_kept_in_the_folder(tmp_path: Path) -> None:
    address, data = packed(Book([Set("a", 1), total("b", "a")]))
    StructureCache(tmp_path).put(address, data)
    found = StructureCache(tmp_path).get(address)
    assert found is not None
    assert (found.base, found.refs.tolist(), [shape.function for shape in found.templates]) == (1, [0], ["sum"])
    assert StructureCache(tmp_path).get("sha256:" + "0" * 64) is None
    assert [path.name for path in tmp_path.iterdir()] == [address]


def test_damaged_structures_are_not_used(tmp_path: Path) -> None:
    address, data = packed(Book([Set("a", 1), total("b", "a")]))
    StructureCache(tmp_path).put(address, data)
    (tmp_path / address).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert StructureCache(tmp_path).get(address) is None
    assert not (tmp_path / address).exists()
    with pytest.raises(DvuError, match="does not have the hash"):
        StructureCache(tmp_path).put(address, data + b"x")


def test_what_cannot_be_kept_leaves_nothing_behind(tmp_path: Path) -> None:
    address, data = packed(Book([Set("a", 1), total("b", "a")]))
    (tmp_path / address).mkdir()  # so the finished file cannot have this name
    assert StructureCache(tmp_path).put(address, data).address == address
    assert [path.name for path in tmp_path.iterdir()] == [address]


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    made = [packed(Book([Set("a", 1), *(total(f"b{n}", "a") for n in range(1 + at))])) for at in range(4)]
    room = len(made[2][1]) + len(made[3][1])
    for age, (address, data) in enumerate(made):
        StructureCache(tmp_path, room).put(address, data)
        os.utime(tmp_path / address, (age, age))
    assert {path.name for path in tmp_path.iterdir()} == {address for address, _ in made[2:]}


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setenv(structure_cache.FOLDER_VARIABLE, str(tmp_path / "own"))
    assert structure_cache.cache_folder() == tmp_path / "own"
    (tmp_path / "own").chmod(mode)
    assert structure_cache.cache_folder() is None


def test_values_of_an_update_are_ok(tmp_path: Path) -> None:
    book, kept = Book([Set("a", 1), total("b", "a")]), StructureCache(tmp_path)
    update(book, WHOLE, kept)
    assert book.values()["b"].state is State.OK


@pytest.mark.parametrize(
    "nodes",
    [[0], [1], [3], [0, 1, 2, 3], [0, 1], [1, 2], [2, 3], [0, 2], [1, 3], [0, 1, 3], [2, 1, 3], [3, 0], [0, 2, 1, 3]],
)
def test_ids_as_text_are_those_of_the_nodes_that_are_asked_for(nodes: list[int]) -> None:
    ids = ["a", "bä", "c/c/c", "d d"]
    found = layout.IdText.of(ids).lines(np.array(nodes, np.int32), sys.maxsize)
    assert found.decode().split("\n") == [ids[node] for node in nodes]
