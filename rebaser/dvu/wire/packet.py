"""What travels to a Spark worker and back: one packet, one run of bytes (see `wire`).

Invariant: a packet is complete in itself. Nodes stand in topological order; an input is a slot number, first the
constants, then the nodes; no ids travel, because results name slots and the planner puts the ids back.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rebaser.dvu.wire.column import FAULT, FLOAT, IN_ERROR, NEVER_COMPUTED, NO_VALUE, Column, Digest, Item, Sentinel
from rebaser.dvu.wire.framing import pack, unpack
from rebaser_core.errors import DvuError
from rebaser_core.state.templates import Template
from rebaser_core.values import Json, check_json

__all__ = [
    "IN_ERROR",
    "NEVER_COMPUTED",
    "NO_VALUE",
    "Digest",
    "Item",
    "NodeFault",
    "Packet",
    "PacketBuilder",
    "Results",
    "Sentinel",
    "Template",
    "estimated_size",
]

VERSION = 3

# A fault of the node's own: code and message. Or the slot of the input that failed or is missing.
NodeFault: TypeAlias = tuple[str, str] | int
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
Encoded: TypeAlias = bytes | pa.Buffer  # what was encoded; if it is large, maybe a file's memory


@dataclass(slots=True)
class Packet:
    """A packet in arrays, as it travels.

    By node: `shape` (position in `shapes`), `dirty` (compute it whatever its inputs say), `old` (what stood there).
    `refs` holds the input slots of all nodes one after another. `functions` gives the fingerprint of each function
    used, None for one that the planner does not know; `code` that of the evaluator. `starts`, where it is known: at
    which of `refs` each node begins, and the end; all is known to be in range then. `uses`, where it is known: how many
    nodes each of `shapes` has.
    """

    number: int
    code: str
    functions: dict[str, str | None]
    shapes: list[Template]
    constants: Column
    shape: IntArray
    refs: IntArray
    dirty: npt.NDArray[np.bool_]
    old: Column
    starts: IntArray | None = None
    uses: IntArray | None = None

    def encode(self) -> bytes:
        """The bytes of the packet."""
        shape = self.shape
        meta = {
            "version": VERSION,
            "number": self.number,
            "code": self.code,
            "functions": self.functions,
            "shapes": write_shapes(self.shapes),
            "counts": [len(self.constants), len(shape)],
        }
        narrow = np.min_scalar_type(len(self.shapes))  # bytes cost more time on their way than the computing
        return pack(
            meta,
            {
                "shape": (shape[:1] if len(self.shapes) == 1 else shape).astype(narrow, copy=False),
                "refs": self.refs.astype(np.int32, copy=False),
                "dirty": np.packbits(self.dirty),
                **self.constants.packed("constant"),
                **self.old.packed("old"),
            },
        )

    @classmethod
    def decode(cls, data: bytes | pa.Buffer) -> "Packet":
        """The packet in `data`, whose memory it keeps. Raises `DvuError` for one it cannot read."""
        return cls.of_columns(*read_packet(data))

    @classmethod
    def of_columns(cls, meta: dict[str, Any], row: dict[str, Any]) -> "Packet":
        """The packet that `read_packet` read."""
        shapes = read_shapes(meta["shapes"])
        constants, nodes = meta["counts"]
        _require(len(row["dirty"]) == -(-nodes // 8))
        return cls(
            meta["number"],
            meta["code"],
            meta["functions"],
            shapes,
            Column.unpacked("constant", row, constants),
            row["shape"].astype(np.int32) if len(row["shape"]) == nodes else np.zeros(nodes, np.int32),
            row["refs"],
            np.unpackbits(row["dirty"], count=nodes).view(np.bool_),
            Column.unpacked("old", row, nodes),
        )


@dataclass(slots=True)
class PacketBuilder:
    """A packet made node by node: as `Packet`, but with lists, and a ref is `~k` for constant k, else a node."""

    number: int
    code: str
    functions: dict[str, str | None] = field(default_factory=dict)
    shapes: list[Template] = field(default_factory=list)
    constants: list[Item] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    refs: list[int] = field(default_factory=list)
    dirty: bytearray = field(default_factory=bytearray)
    old: list[Item] = field(default_factory=list)

    def encode(self) -> bytes:
        """Bytes, to be read as `Packet`."""
        refs = np.array(self.refs, np.int32)
        return Packet(
            self.number,
            self.code,
            self.functions,
            self.shapes,
            Column.of(self.constants),
            np.array(self.shape, np.int32),
            np.where(refs < 0, ~refs, refs + np.int32(len(self.constants))),
            np.frombuffer(bytes(self.dirty), np.bool_),
            Column.of(self.old),
        ).encode()


@dataclass(slots=True)
class Results:
    """Changed nodes of one packet, or a part of them: `nodes[i]`, ascending, is now `values[i]`, IN_ERROR taking from
    `faults`."""

    number: int
    part: int
    last: bool
    nodes: IntArray
    values: Column
    faults: list[NodeFault]
    missing: bool = False  # nothing was computed: the worker has not got the structure

    def encode(self) -> bytes:
        nodes = self.nodes
        first = int(nodes[0]) if len(nodes) else 0
        span = int(nodes[-1]) + 1 - first if len(nodes) else 0
        meta = {
            "number": self.number,
            "part": self.part,
            "last": self.last,
            "faults": self.faults,
            "nodes": [len(nodes), first, span],
        }
        if self.missing:
            meta["missing"] = True
        if span == len(nodes):  # without a gap
            nodes = nodes[:0]
        elif span < 32 * len(nodes):  # a bit for each takes less
            present = np.zeros(span, np.bool_)
            present[nodes - first] = True
            nodes = np.packbits(present)
        else:
            nodes = nodes.astype(np.int32, copy=False)
        return pack(meta, {"nodes": nodes, **self.values.packed("value")})

    @classmethod
    def decode(cls, data: bytes | pa.Buffer, most: int = 1 << 31) -> "Results":
        """The results in `data`, whose memory they keep, of nodes below `most`. Raises `DvuError` for bytes that are
        none, whatever they say: who reads them looks at no bounds."""
        meta, row = unpack(data, "results")
        try:
            return cls._read(meta, row, most)
        except Exception as error:  # noqa: BLE001 - as in `unpack`
            raise DvuError(f"unreadable results: {type(error).__name__}: {str(error)[:200]}") from None

    @classmethod
    def _read(cls, meta: dict[str, Any], row: dict[str, Any], most: int) -> "Results":
        count, first, span = meta["nodes"]
        _require(0 <= count <= span and first >= 0 and first + span <= most and bool(count) == bool(span))
        nodes: Any = row["nodes"]
        if span == count:
            nodes = np.arange(first, first + span)
        elif span < 32 * count:
            nodes = np.flatnonzero(np.unpackbits(nodes, count=span)) + first
        else:
            _require(nodes.dtype == np.int32 and bool((nodes[1:] > nodes[:-1]).all()))
        _require(len(nodes) == count and (not count or [nodes[0], nodes[-1]] == [first, first + span - 1]))
        faults: list[NodeFault] = [one if type(one) is int else _own(one) for one in meta["faults"]]
        values = Column.unpacked("value", row, count)
        kinds = row["value_kinds"]  # one, if all are the same
        _require(not count or bool(kinds.max() <= FAULT))
        _require((np.count_nonzero(values.kinds == FAULT) if faults or (kinds == FAULT).any() else 0) == len(faults))
        _require(_finite(values))
        for one in values.others.values():
            _require(type(one) in {str, list, dict})
            if type(one) is not str:
                check_json(one)
        number, part, last, missing = meta["number"], meta["part"], meta["last"], meta.get("missing", False)
        _require(type(number) is type(part) is int and type(last) is type(missing) is bool)
        return cls(number, part, last, nodes, values, faults, missing)


def _require(true: bool) -> None:
    if not true:
        raise ValueError("they do not fit together")


def _finite(values: Column) -> bool:
    numbers = values.bits.view(np.float64)  # what is no double may be anything, but seldom is
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(numbers.sum()) or np.isfinite(numbers[values.kinds == FLOAT]).all())


def _own(raw: Any) -> tuple[str, str]:
    code, message = raw
    _require(type(code) is type(message) is str)
    return code, message


def estimated_size(value: Json) -> int:
    """About how many bytes `value` takes; the same number wherever it is asked."""
    if isinstance(value, str):
        return 3 + (len(value) if value.isascii() else len(value.encode()))
    if isinstance(value, list):
        return 9 + sum([estimated_size(child) for child in value])
    if isinstance(value, dict):
        return 9 + sum([estimated_size(key) + estimated_size(child) for key, child in value.items()])
    return 9


def read_packet(data: bytes | pa.Buffer) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a packet of any kind says of itself, and its columns. Raises `DvuError` for one it cannot read."""
    meta, columns = unpack(data, "packet")
    if meta.get("version") != VERSION:
        raise DvuError(f"packet version {meta.get('version')}, this worker reads {VERSION}: same release needed")
    return meta, columns


def write_shapes(shapes: list[Template]) -> list[Any]:
    """`shapes` as they travel."""
    return [[one.function, [list(pair) for pair in one.inputs], dict(one.params)] for one in shapes]


def read_shapes(raw: list[Any]) -> list[Template]:
    """The shapes that `write_shapes` wrote."""
    return [
        Template(function, tuple([(name, count) for name, count in inputs]), params) for function, inputs, params in raw
    ]
