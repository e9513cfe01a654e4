"""Packets and results as bytes: they are read back unchanged with their types, and other bytes are refused."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser.dvu.wire import column
from rebaser.dvu.wire.column import Column
from rebaser.dvu.wire.framing import pack, unpack
from rebaser.dvu.wire.packet import (
    IN_ERROR,
    NEVER_COMPUTED,
    NO_VALUE,
    DefinitionTemplate,
    Digest,
    Item,
    Packet,
    PacketBuilder,
    Results,
    Sentinel,
    estimated_size,
)
from rebaser.dvu.wire.structure import decode
from rebaser_core.errors import DvuError
from rebaser_core.state import kinds
from rebaser_core.values import Json

json: st.SearchStrategy[Json] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"])),
    ),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text("ab"), child, max_size=3),
    max_leaves=5,
)
items: st.SearchStrategy[list[Item]] = st.one_of(
    st.lists(
        st.one_of(
            json,
            st.sampled_from([IN_ERROR, NO_VALUE, NEVER_COMPUTED]),
            st.builds(Digest, st.binary(min_size=16, max_size=16)),
        )
    ),
    st.lists(st.floats(allow_nan=False)),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
)


def typed(values: Iterable[Item]) -> list[tuple[type, str]]:
    return [(type(value), repr(value)) for value in values]


@settings(deadline=None)
@given(items, items)
def test_values_come_out_as_they_went_in(constants: list[Item], old: list[Item]) -> None:
    """`1`, `1.0` and `True` stay different, and so do `0.0` and `-0.0`."""
    packet = PacketBuilder(7, "code", constants=constants, template=[0] * len(old), dirty=bytearray(len(old)), old=old)
    again = Packet.decode(packet.encode())
    assert typed(again.constants) == typed(constants)
    assert typed(again.old) == typed(old)


@settings(deadline=None)
@given(items)
def test_results_come_out_as_they_went_in(values: list[Item]) -> None:
    values = [one for one in values if not isinstance(one, Sentinel | Digest) and one != math.inf and one != -math.inf]
    results = Results(3, 1, True, np.arange(len(values)), Column.from_items(values), [])
    again = Results.decode(results.encode())
    assert (again.number, again.part, again.last) == (3, 1, True)
    assert again.nodes.tolist() == list(range(len(values)))
    assert typed(again.values) == typed(values)


@settings(deadline=None)
@given(items, st.data())
def test_a_column_is_the_list_of_its_items(values: list[Item], data: st.DataObject) -> None:
    column = Column.from_items(values)
    assert typed(column) == typed(values)
    assert typed([column[at] for at in range(-len(values), len(values))]) == typed(values + values)
    assert typed(column[1:]) == typed(values[1:])
    start = data.draw(st.integers(0, len(values)))
    assert typed(column.part(start, len(values))) == typed(values[start:])
    assert typed(column.part(0, start)) == typed(values[:start])


@given(st.sets(st.integers(0, 3000)))
def test_nodes_come_out_as_they_went_in(nodes: set[int]) -> None:
    """With or without gaps, nodes are stored as a range, as bits, or as a list."""
    ordered = sorted(nodes)
    results = Results(1, 0, True, np.array(ordered, np.int64), Column.from_items([None] * len(ordered)), [])
    assert Results.decode(results.encode()).nodes.tolist() == ordered


def test_faults_keep_their_two_forms() -> None:
    results = Results(1, 0, True, np.arange(2), Column.from_items([IN_ERROR, IN_ERROR]), [("failed", "why"), 5])
    assert Results.decode(results.encode()).faults == [("failed", "why"), 5]


def test_refs_become_slots_with_constants_first() -> None:
    shape = DefinitionTemplate("sum", (("a", -1), ("b", 2)), {"p": [1, None]})
    packet = PacketBuilder(1, "code", {"sum": ""}, [shape], [10, 20], template=[0, 0], refs=[~1, ~0, ~0, 0, ~1, 0])
    packet.dirty, packet.old = bytearray(2), [NEVER_COMPUTED, NEVER_COMPUTED]
    again = Packet.decode(packet.encode())
    assert again.refs.tolist() == [1, 0, 0, 2, 1, 2]
    assert again.templates == [shape]
    assert (again.functions, shape.arity) == ({"sum": ""}, 3)


def test_a_number_costs_few_bytes() -> None:
    """The bytes are typed columns: 8 bytes per number, 4 per input, and no ids."""
    count = 10_000
    packet = PacketBuilder(1, "code", templates=[DefinitionTemplate("sum", (("x", 2),), {})], constants=[0.5] * count)
    packet.template, packet.refs, packet.dirty = [0] * count, [~0] * 2 * count, bytearray(count)
    packet.old = [1.5] * count
    assert len(packet.encode()) < 25 * count
    results = Results(1, 0, True, np.arange(0, 2 * count, 2), Column.from_items([0.5] * count), [])
    assert len(results.encode()) < 9 * count


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\xff" * 100, b"\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DvuError, match="unreadable packet"):
        Packet.decode(data)
    with pytest.raises(DvuError, match="unreadable results"):
        Results.decode(data)


NAN = int(np.array([np.nan]).view(np.int64)[0])
GARBLED: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "number": lambda meta, _: meta.update(number="1"),
    "part": lambda meta, _: meta.update(part=None),
    "last": lambda meta, _: meta.update(last=1),
    "nodes lacking": lambda meta, _: meta.pop("nodes"),
    "nodes huge": lambda meta, _: meta.update(nodes=[2**40, 0, 2**40]),
    "nodes wide": lambda meta, _: meta.update(nodes=[5, 0, 2**40]),
    "nodes beyond": lambda meta, _: meta.update(nodes=[5, 6, 5]),
    "nodes before": lambda meta, _: meta.update(nodes=[5, -1, 5]),
    "nodes too few": lambda meta, _: meta.update(nodes=[4, 0, 5]),
    "no fault": lambda meta, _: meta.update(faults=[]),
    "too many faults": lambda meta, _: meta.update(faults=[["a", "b"], 7]),
    "fault of numbers": lambda meta, _: meta.update(faults=[[1, 2]]),
    "fault of one word": lambda meta, _: meta.update(faults=[["a"]]),
    "faults of nothing": lambda meta, _: meta.update(faults=None),
    "kinds missing": lambda _, row: row.pop("value_kinds"),
    "kinds wide": lambda _, row: row.update(value_kinds=row["value_kinds"].astype(np.int64)),
    "kinds too few": lambda _, row: row.update(value_kinds=row["value_kinds"][:3]),
    "kinds unheard of": lambda _, row: row["value_kinds"].put(4, 77),
    "not there": lambda _, row: row["value_kinds"].put(4, 7),
    "numbers narrow": lambda _, row: row.update(value_bits=row["value_bits"].astype(np.int32)),
    "numbers too few": lambda _, row: row.update(value_bits=row["value_bits"][:1]),
    "not a number": lambda _, row: row["value_bits"].put(1, NAN),
    "texts lacking": lambda _, row: row.update(value_others=b""),
    "texts too many": lambda _, row: row.update(value_others=cbor2.dumps(["x", "y"])),
    "no text": lambda _, row: row.update(value_others=cbor2.dumps([1])),
    "a date": lambda _, row: row.update(value_others=cbor2.dumps([cbor2.CBORTag(1, 0)])),
    "a date in a list": lambda _, row: row.update(value_others=cbor2.dumps([[cbor2.CBORTag(1, 0)]])),
    "no CBOR": lambda _, row: row.update(value_others=b"\xff"),
    "a digest": lambda _, row: row.update(value_digests=b"x" * 16),
}


@pytest.mark.parametrize("garble", GARBLED.values(), ids=GARBLED)
def test_garbled_results_are_refused(garble: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    results = Results(1, 0, True, np.arange(5), Column.from_items([1, 1.5, "x", IN_ERROR, None]), [("failed", "why")])
    meta, row = unpack(results.encode(), "results")
    row = {name: one if isinstance(one, bytes) else one.copy() for name, one in row.items()}
    assert Results.decode(pack(meta, row), 5).values.tolist() == results.values.tolist()
    garble(meta, row)
    with pytest.raises(DvuError, match="unreadable results"):
        Results.decode(pack(meta, row), 5)


def test_nodes_that_are_not_in_order_are_refused() -> None:
    results = Results(1, 0, True, np.array([0, 500, 1000]), Column.from_items([1, 2, 3]), [])
    meta, row = unpack(results.encode(), "results")
    for nodes in ([0, 1000, 500], [0, 0, 1000], [1, 500, 1000], [0, 500, 999]):
        with pytest.raises(DvuError, match="unreadable results"):
            Results.decode(pack(meta, row | {"nodes": np.array(nodes, np.int32)}))


@pytest.mark.parametrize("counts", [[2**62, 1], [1, 2**40], [1, 9], [-1, 1], [1], None])
def test_packets_that_do_not_hold_together_are_refused(counts: object) -> None:
    packet = PacketBuilder(1, "code", constants=["x"], template=[0], dirty=bytearray(1), old=["y"])
    meta, row = unpack(packet.encode(), "packet")
    with pytest.raises(DvuError, match="unreadable packet"):
        decode(meta | {"counts": counts}, row)


def test_a_packet_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebaser.dvu.wire.packet.VERSION", 99)
    data = PacketBuilder(1, "code").encode()
    monkeypatch.undo()
    with pytest.raises(DvuError, match="a packet has version 99"):
        Packet.decode(data)


@settings(deadline=None)
@given(json)
def test_weight_is_near_the_encoded_size(value: Json) -> None:
    assert estimated_size(value) >= len(cbor2.dumps(value)) * 0.5


def test_what_a_state_stores_and_what_travels_have_the_same_kinds() -> None:
    names = ("NULL", "FALSE", "TRUE", "INT", "FLOAT", "OTHER")
    assert [getattr(column, name) for name in names] == [getattr(kinds, name) for name in names]
