"""Packets and results as bytes: what goes in comes out, typed, and foreign bytes are refused."""

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser.dvu.packet import (
    IN_ERROR,
    NEVER,
    NOT_THERE,
    Digest,
    Item,
    Packet,
    Results,
    Shape,
    weight,
)
from rebaser_core.errors import DvuError
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
            json, st.sampled_from([IN_ERROR, NOT_THERE, NEVER]), st.builds(Digest, st.binary(min_size=16, max_size=16))
        )
    ),
    st.lists(st.floats(allow_nan=False)),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
)


def typed(values: list[Item]) -> list[tuple[type, str]]:
    return [(type(value), repr(value)) for value in values]


@settings(deadline=None)
@given(items, items)
def test_values_come_out_as_they_went_in(constants: list[Item], old: list[Item]) -> None:
    """Type for type: `1`, `1.0` and `True` stay apart, and so do `0.0` and `-0.0`."""
    packet = Packet(7, "code", constants=constants, old=old)
    again = Packet.decode(packet.encode())
    assert typed(again.constants) == typed(constants)
    assert typed(again.old) == typed(old)


@settings(deadline=None)
@given(items)
def test_results_come_out_as_they_went_in(values: list[Item]) -> None:
    results = Results(3, 1, last=True, nodes=list(range(len(values))), values=values)
    again = Results.decode(results.encode())
    assert (again.number, again.part, again.last, again.nodes) == (3, 1, True, results.nodes)
    assert typed(again.values) == typed(values)


def test_faults_keep_their_two_forms() -> None:
    results = Results(1, 0, last=True, nodes=[0, 1], values=[IN_ERROR, IN_ERROR], faults=[("failed", "why"), 5])
    assert Results.decode(results.encode()).faults == [("failed", "why"), 5]


def test_refs_become_slots_with_constants_first() -> None:
    shape = Shape("sum", (("a", -1), ("b", 2)), {"p": [1, None]})
    packet = Packet(1, "code", {"sum": ""}, [shape], [10, 20], shape=[0, 0], refs=[~1, ~0, ~0, 0, ~1, 0])
    again = Packet.decode(packet.encode())
    assert again.refs == [1, 0, 0, 2, 1, 2]
    assert again.shapes == [shape]
    assert (again.functions, shape.arity) == ({"sum": ""}, 3)


def test_a_number_costs_few_bytes() -> None:
    """What travels is typed columns: 8 bytes a number, 4 an input, and no ids."""
    count = 10_000
    packet = Packet(1, "code", shapes=[Shape("sum", (("x", 2),), {})], constants=[0.5] * count)
    packet.shape, packet.refs, packet.dirty = [0] * count, [~0] * 2 * count, bytearray(count)
    packet.old = [1.5] * count
    assert len(packet.encode()) < 40 * count
    results = Results(1, 0, last=True, nodes=list(range(count)), values=[0.5] * count)
    assert len(results.encode()) < 14 * count


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\xff" * 100, b"\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DvuError, match="unreadable packet"):
        Packet.decode(data)
    with pytest.raises(DvuError, match="unreadable results"):
        Results.decode(data)


def test_a_packet_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebaser.dvu.packet.VERSION", 2)
    data = Packet(1, "code").encode()
    monkeypatch.undo()
    with pytest.raises(DvuError, match="packet version 2"):
        Packet.decode(data)


@settings(deadline=None)
@given(json)
def test_weight_is_near_the_encoded_size(value: Json) -> None:
    assert weight(value) >= len(cbor2.dumps(value)) * 0.5
