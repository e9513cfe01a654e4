"""The graph of a whole change set as it travels: once, and from then on by the hash of it.

An update of it is a `StructurePacket`: which nodes to compute, and the values they start from. So an update of most of
a large graph sends its inputs, not its edges.
Invariant: a `Structure` never changes. It holds no value, and no ids except those of inputs that are part of a result
(`by_id`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rebaser.dvu.wire.column import UNKNOWN, Column
from rebaser.dvu.wire.framing import pack, unpack
from rebaser.dvu.wire.packet import VERSION, Packet, Template, read_shapes, write_shapes
from rebaser_core.blob_address import address_of
from rebaser_core.errors import DvuError

Ints = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """Slots number `base` values that are given first, then the nodes, each after what it reads.

    By node: `shape`, a position in `shapes`; node i reads the slots `refs[starts[i]:starts[i + 1]]`. `uses` counts the
    nodes of each shape. `data` is all of it as bytes, in whose memory it may stand, and `address` that of a blob of
    them.
    """

    base: int
    shapes: list[Template]
    shape: Ints
    refs: Ints
    starts: npt.NDArray[np.int64]
    uses: npt.NDArray[np.int64]
    data: bytes | pa.Buffer
    address: str

    @classmethod
    def make(cls, base: int, shapes: list[Template], shape: Ints, refs: Ints) -> "Structure":
        """The structure of `refs`, which are known to be in order and in range."""
        meta = {"version": VERSION, "base": base, "shapes": write_shapes(shapes)}
        data = pack(meta, {"shape": shape, "refs": refs})
        return cls.decode(data, address_of(data))

    @classmethod
    def decode(cls, data: bytes | pa.Buffer, address: str) -> "Structure":
        """The structure in `data`, whose hash is `address`. Raises `DvuError` for bytes that are none."""
        meta, row = unpack(data, "structure")
        shapes = read_shapes(meta["shapes"])
        shape = row["shape"]
        starts = np.zeros(len(shape) + 1, np.int64)
        np.cumsum(np.array([one.arity for one in shapes], np.int64)[shape], out=starts[1:])
        uses = np.bincount(shape, minlength=len(shapes))
        return cls(meta["base"], shapes, shape, row["refs"], starts, uses, data, address)


@dataclass(frozen=True, slots=True, eq=False)
class StructurePacket:
    """A packet: of the structure at `address`, compute the nodes of `reached`, where the `given` slots have `values`.

    None for a mask: all nodes; the slots before the nodes. `data` of the structure may come with it, or `store` say
    where it is. `number`, `code` and `functions` are those of `Packet`.
    """

    number: int
    code: str
    functions: dict[str, str | None]
    address: str
    reached: Mask | None
    given: Mask | None
    values: Column
    data: bytes | pa.Buffer = b""
    store: str = ""

    def encode(self) -> bytes:
        """The bytes of the packet."""
        meta = {
            "version": VERSION,
            "number": self.number,
            "code": self.code,
            "functions": self.functions,
            "structure": self.address,
            "store": self.store,
            "counts": [len(mask) if mask is not None else 0 for mask in (self.reached, self.given)]
            + [len(self.values)],
        }
        return pack(
            meta,
            {
                "reached": _bits(self.reached),
                "given": _bits(self.given),
                "structure": self.data if isinstance(self.data, bytes) else self.data.to_pybytes(),
                **self.values.packed("value"),
            },
        )

    @classmethod
    def of_columns(cls, meta: dict[str, Any], row: dict[str, Any]) -> "StructurePacket":
        """The packet that `read_packet` read."""
        reached, given, count = meta["counts"]
        return cls(
            meta["number"],
            meta["code"],
            meta["functions"],
            meta["structure"],
            _mask(row["reached"], reached),
            _mask(row["given"], given),
            Column.unpacked("value", row, count),
            row["structure"],
            meta["store"],
        )

    def work(self, structure: Structure) -> Packet:
        """What there is to compute, over the arrays of `structure`."""
        base, count = structure.base, len(structure.shape)
        lengths = [mask if mask is None else len(mask) for mask in (self.reached, self.given)]
        sent = base if self.given is None else int(self.given.sum())
        if lengths[0] not in (None, count) or lengths[1] not in (None, base + count) or len(self.values) != sent:
            raise DvuError("a packet is not one of its structure")  # compiled code looks at no bounds
        kinds = np.broadcast_to(np.uint8(UNKNOWN), base + count)
        bits = np.zeros(base + count, np.int64)
        constants, old = self.values, Column(kinds[base:], bits[base:])
        if self.given is not None:
            slots = np.flatnonzero(self.given)
            kinds = kinds.copy()
            kinds[slots], bits[slots] = self.values.kinds, self.values.bits
            others = {int(slots[at]): value for at, value in self.values.others.items()}
            constants = Column(kinds[:base], bits[:base], {at: one for at, one in others.items() if at < base})
            old = Column(kinds[base:], bits[base:], {at - base: one for at, one in others.items() if at >= base})
        return Packet(
            self.number,
            self.code,
            self.functions,
            structure.shapes,
            constants,
            structure.shape,
            structure.refs,
            np.ones(count, np.bool_) if self.reached is None else self.reached,
            old,
            structure.starts,
            structure.uses,
        )


def decode(meta: dict[str, Any], row: dict[str, Any]) -> Packet | StructurePacket:
    """The packet that `read_packet` read, whichever it is. Raises `DvuError` for one that does not hold together."""
    try:
        return StructurePacket.of_columns(meta, row) if "structure" in meta else Packet.of_columns(meta, row)
    except Exception as error:  # noqa: BLE001 - as in `unpack`
        raise DvuError(f"unreadable packet: {type(error).__name__}: {str(error)[:200]}") from None


def function_names(shapes: Sequence[Template]) -> set[str]:
    """Names of the functions that `shapes` call."""
    return {shape.function for shape in shapes}


def _bits(mask: Mask | None) -> npt.NDArray[np.uint8]:
    return np.zeros(0, np.uint8) if mask is None else np.packbits(mask)


def _mask(bits: npt.NDArray[np.uint8], count: int) -> Mask | None:
    if len(bits) != -(-count // 8):
        raise ValueError("a mask is not all there")
    return np.unpackbits(bits, count=count).view(np.bool_) if count else None
