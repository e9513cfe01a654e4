"""Columns as bytes: they are read back unchanged, without copying, and damaged bytes are refused."""

import cbor2
import numpy as np
import pytest

from rebaser.dvu.wire.framing import pack, unpack
from rebaser_core.errors import DvuError

META = {"number": 7, "text": "é", "none": None}
COLUMNS = {
    "bytes": b"abc",
    "empty": b"",
    "u1": np.array([1, 2, 255], np.uint8),
    "u2": np.array([65535], np.uint16),
    "u4": np.array([2**32 - 1, 0], np.uint32),
    "none": np.empty(0, np.int32),
    "i4": np.array([-(2**31), 5, 6], np.int32),
    "i8": np.array([-(2**63), 2**63 - 1], np.int64),
}


def test_what_goes_in_comes_out() -> None:
    meta, columns = unpack(pack(META, COLUMNS), "packet")
    assert meta == META
    assert list(columns) == list(COLUMNS)
    for name, value in COLUMNS.items():
        again = columns[name]
        assert again == value if isinstance(value, bytes) else again.tolist() == value.tolist()  # type: ignore[attr-defined]
        assert isinstance(value, bytes) or again.dtype == value.dtype  # type: ignore[attr-defined]


def test_arrays_stay_where_they_are() -> None:
    data = pack(META, COLUMNS)
    _, columns = unpack(data, "packet")
    assert all(columns[name].base is not None for name in ("u1", "i8"))
    start = np.frombuffer(data, np.uint8).ctypes.data
    assert all((columns[name].ctypes.data - start) % 8 == 0 for name in ("u1", "u2", "u4", "i4", "i8"))


def test_every_other_item_of_an_array_is_a_column_too() -> None:
    _, columns = unpack(pack({}, {"a": np.arange(10, dtype=np.int32)[::2], "b": np.broadcast_to(np.uint8(3), 4)}), "x")
    assert (columns["a"].tolist(), columns["b"].tolist()) == ([0, 2, 4, 6, 8], [3] * 4)


def test_bytes_that_end_too_soon_are_refused_wherever_they_end() -> None:
    data = pack(META, COLUMNS)
    for end in range(len(data)):
        with pytest.raises(DvuError, match="unreadable results"):
            unpack(data[:end], "results")


@pytest.mark.parametrize(
    "about", [[["a", 4, 2**62]], [["a", 4, -1]], [["a", 99, 0]], [["a", 0, 1.5]], [["a"]], 3, [[[], 0, 0]]]
)
def test_lengths_and_types_are_not_believed(about: object) -> None:
    head = cbor2.dumps([{}, about])
    with pytest.raises(DvuError, match="unreadable packet"):
        unpack(b"RBC1" + len(head).to_bytes(4, "little") + head, "packet")
