"""Defines a packet of nodes for a Spark worker to compute, and the results of a packet. Both are encoded as byte
strings (see `framing`).

Invariant: a packet is self-contained. Its nodes are in topological order. Its constants are the inputs of its nodes
that it does not compute itself. An input is the number of a slot. The slots are numbered: first the constants, then the
nodes. Results refer to nodes by number, and faults refer to inputs by slot. The planner maps both back to ids, so ids
are not sent, except as names of the inputs of definitions that call `by_id`.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rebaser.dvu.wire.column import FAULT, FLOAT, IN_ERROR, NEVER_COMPUTED, NO_VALUE, Column, Digest, Item, Sentinel
from rebaser.dvu.wire.framing import pack, unpack
from rebaser_core.errors import DvuError
from rebaser_core.state.templates import DefinitionTemplate
from rebaser_core.values import Json, check_json

__all__ = [
    "IN_ERROR",
    "NEVER_COMPUTED",
    "NO_VALUE",
    "DefinitionTemplate",
    "Digest",
    "Item",
    "NodeFault",
    "Packet",
    "PacketBuilder",
    "Results",
    "Sentinel",
    "estimated_size",
]

VERSION = 4

# The fault of a node: its code and message or, if it is caused by an input, the slot of the input.
NodeFault: TypeAlias = tuple[str, str] | int
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
Encoded: TypeAlias = bytes | pa.Buffer  # an encoded message; a large one may be a memory-mapped file


@dataclass(slots=True)
class Packet:
    """A part of an update that a worker computes in one pass: nodes, their inputs, and the initial values.

    Three fields have an item for each node: `template`, its index in `templates`; `dirty`, whether it is computed even
    if no input changes; `old`, its previous value. `refs` has the input slots of the first node, then those of the
    second node, and so on. `functions` maps the name of each function that is used to its fingerprint; None if the
    planner does not have the function. `code` is the fingerprint of the evaluator.

    `starts` has the index in `refs` at which the inputs of each node begin, followed by the end; if it is not None, all
    slots are in range. `uses` is the number of nodes of each template. `starts` and `uses` are None if they were not
    computed.
    """

    number: int
    code: str
    functions: dict[str, str | None]
    templates: list[DefinitionTemplate]
    constants: Column
    template: IntArray
    refs: IntArray
    dirty: npt.NDArray[np.bool_]
    old: Column
    starts: IntArray | None = None
    uses: IntArray | None = None

    def encode(self) -> bytes:
        """Return the packet as bytes."""
        template = self.template
        meta = {
            "version": VERSION,
            "number": self.number,
            "code": self.code,
            "functions": self.functions,
            "templates": encode_templates(self.templates),
            "counts": [len(self.constants), len(template)],
        }
        narrow = np.min_scalar_type(len(self.templates))  # the conversion takes less time than sending a wider type
        return pack(
            meta,
            {
                "template": (template[:1] if len(self.templates) == 1 else template).astype(narrow, copy=False),
                "refs": self.refs.astype(np.int32, copy=False),
                "dirty": np.packbits(self.dirty),
                **self.constants.pack("constant"),
                **self.old.pack("old"),
            },
        )

    @classmethod
    def decode(cls, data: bytes | pa.Buffer) -> "Packet":
        """Decode the packet in `data`. Its arrays share the memory of `data`. Raise `DvuError` if it is unreadable."""
        return cls.of_columns(*read_packet(data))

    @classmethod
    def of_columns(cls, meta: dict[str, Any], row: dict[str, Any]) -> "Packet":
        """Return the packet whose metadata and columns `read_packet` returned."""
        templates = decode_templates(meta["templates"])
        constants, nodes = meta["counts"]
        _require(len(row["dirty"]) == -(-nodes // 8))
        return cls(
            meta["number"],
            meta["code"],
            meta["functions"],
            templates,
            Column.unpack("constant", row, constants),
            row["template"].astype(np.int32) if len(row["template"]) == nodes else np.zeros(nodes, np.int32),
            row["refs"],
            np.unpackbits(row["dirty"], count=nodes).view(np.bool_),
            Column.unpack("old", row, nodes),
        )


@dataclass(slots=True)
class PacketBuilder:
    """Builds a packet node by node. Its fields are those of `Packet`, as lists. An item of `refs` is `~k` for constant
    `k`; otherwise it is the number of a node."""

    number: int
    code: str
    functions: dict[str, str | None] = field(default_factory=dict)
    templates: list[DefinitionTemplate] = field(default_factory=list)
    constants: list[Item] = field(default_factory=list)
    template: list[int] = field(default_factory=list)
    refs: list[int] = field(default_factory=list)
    dirty: bytearray = field(default_factory=bytearray)
    old: list[Item] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the packet as bytes, for `Packet.decode`."""
        refs = np.array(self.refs, np.int32)
        return Packet(
            self.number,
            self.code,
            self.functions,
            self.templates,
            Column.from_items(self.constants),
            np.array(self.template, np.int32),
            np.where(refs < 0, ~refs, refs + np.int32(len(self.constants))),
            np.frombuffer(bytes(self.dirty), np.bool_),
            Column.from_items(self.old),
        ).encode()


@dataclass(slots=True)
class Results:
    """A part of the results of the packet `number`: some of the nodes that changed. `part` counts the parts from 0, and
    `last` is True for the last part.

    `nodes` is in ascending order. The new value of `nodes[i]` is `values[i]`. `faults` has the faults of the values
    that are IN_ERROR, in the same order.
    """

    number: int
    part: int
    last: bool
    nodes: IntArray
    values: Column
    faults: list[NodeFault]
    missing: bool = False  # whether nothing was computed, because the worker does not have the structure

    def encode(self) -> bytes:
        """Return the results as bytes."""
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
        if span == len(nodes):  # the nodes are consecutive
            nodes = nodes[:0]
        elif span < 32 * len(nodes):  # one bit per node takes fewer bytes
            present = np.zeros(span, np.bool_)
            present[nodes - first] = True
            nodes = np.packbits(present)
        else:
            nodes = nodes.astype(np.int32, copy=False)
        return pack(meta, {"nodes": nodes, **self.values.pack("value")})

    @classmethod
    def decode(cls, data: bytes | pa.Buffer, node_limit: int = 1 << 31) -> "Results":
        """Decode the results in `data`. Their arrays share the memory of `data`.

        Raise `DvuError` if the bytes are malformed, or if a node number is not below `node_limit`. All values are
        validated, because the code that absorbs results does no bounds checks.
        """
        meta, row = unpack(data, "results")
        try:
            return cls._read(meta, row, node_limit)
        except Exception as error:  # noqa: BLE001 - malformed results may cause any exception
            raise DvuError(f"unreadable results: {type(error).__name__}: {str(error)[:200]}") from None

    @classmethod
    def _read(cls, meta: dict[str, Any], row: dict[str, Any], node_limit: int) -> "Results":
        count, first, span = meta["nodes"]
        _require(0 <= count <= span and first >= 0 and first + span <= node_limit and bool(count) == bool(span))
        nodes: Any = row["nodes"]
        if span == count:
            nodes = np.arange(first, first + span)
        elif span < 32 * count:
            nodes = np.flatnonzero(np.unpackbits(nodes, count=span)) + first
        else:
            _require(nodes.dtype == np.int32 and bool((nodes[1:] > nodes[:-1]).all()))
            nodes = nodes.astype(np.int64)  # the same type in all three forms, because code is compiled for each type
        _require(len(nodes) == count and (not count or [nodes[0], nodes[-1]] == [first, first + span - 1]))
        faults: list[NodeFault] = [raw if type(raw) is int else _own_fault(raw) for raw in meta["faults"]]
        values = Column.unpack("value", row, count)
        kinds = row["value_kinds"]  # a single item if all kinds are equal
        _require(not count or bool(kinds.max() <= FAULT))
        _require((np.count_nonzero(values.kinds == FAULT) if faults or (kinds == FAULT).any() else 0) == len(faults))
        _require(_finite(values))
        for value in values.others.values():
            _require(type(value) in {str, list, dict})
            if type(value) is not str:
                check_json(value)
        number, part, last, missing = meta["number"], meta["part"], meta["last"], meta.get("missing", False)
        _require(type(number) is type(part) is int and type(last) is type(missing) is bool)
        return cls(number, part, last, nodes, values, faults, missing)


def _require(consistent: bool) -> None:
    if not consistent:
        raise ValueError("the parts are inconsistent")


def _finite(values: Column) -> bool:
    # The sum also includes integers, whose bits are read as doubles. In the rare case that these make the sum infinite
    # or NaN, only the doubles are checked.
    numbers = values.bits.view(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(numbers.sum()) or np.isfinite(numbers[values.kinds == FLOAT]).all())


def _own_fault(raw: Any) -> tuple[str, str]:
    code, message = raw
    _require(type(code) is type(message) is str)
    return code, message


def estimated_size(value: Json) -> int:
    """Return the approximate number of bytes of `value` in encoded form. Every process computes the same number."""
    if isinstance(value, str):
        return 3 + (len(value) if value.isascii() else len(value.encode()))
    if isinstance(value, list):
        return 9 + sum([estimated_size(child) for child in value])
    if isinstance(value, dict):
        return 9 + sum([estimated_size(key) + estimated_size(child) for key, child in value.items()])
    return 9


def read_packet(data: bytes | pa.Buffer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata and the columns of a `Packet` or `StructurePacket`. Raise `DvuError` if it is unreadable, or
    has another version."""
    meta, columns = unpack(data, "packet")
    if meta.get("version") != VERSION:
        version = meta.get("version")
        text = f"a packet has version {version}, but this worker reads only version {VERSION}"
        raise DvuError(f"{text}: use the same release of Rebaser on the server and the workers")
    return meta, columns


def encode_templates(templates: list[DefinitionTemplate]) -> list[Any]:
    """Return `templates` in a form that CBOR can represent."""
    return [[each.function, [list(pair) for pair in each.inputs], dict(each.params)] for each in templates]


def decode_templates(raw: list[Any]) -> list[DefinitionTemplate]:
    """Return the templates that `encode_templates` encoded."""
    return [
        DefinitionTemplate(function, tuple([(name, count) for name, count in inputs]), params)
        for function, inputs, params in raw
    ]
