"""Defines a message that contains the graph of a whole change set. The message is sent once, and later packets refer to
the message by its hash.

An update of the graph is sent as a `StructurePacket`, which says which nodes to compute, and contains the initial
values. An update that affects most of a large graph therefore sends values, but no edges.

Invariant: a `Structure` never changes. It contains no values, and no ids except those of inputs that are part of a
result (`by_id`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rebaser.dvu.wire.column import UNKNOWN, Column
from rebaser.dvu.wire.framing import pack, unpack
from rebaser.dvu.wire.packet import VERSION, DefinitionTemplate, Packet, decode_templates, encode_templates
from rebaser_core.blobs.address import address_of
from rebaser_core.errors import DvuError

Ints = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """The graph of a change set without values. Its slots are numbered: first the `base` input values, then the nodes,
    which are the derived values. A node comes after all nodes that it reads.

    Node `i` has the template `templates[template[i]]` and reads the slots `refs[starts[i]:starts[i + 1]]`. `uses` is
    the number of nodes of each template. `data` is the encoded structure; the arrays may share its memory. `address` is
    its address as a blob.
    """

    base: int
    templates: list[DefinitionTemplate]
    template: Ints
    refs: Ints
    starts: npt.NDArray[np.int64]
    uses: npt.NDArray[np.int64]
    data: bytes | pa.Buffer
    address: str

    @classmethod
    def make(cls, base: int, templates: list[DefinitionTemplate], template: Ints, refs: Ints) -> "Structure":
        """Return a new structure. The caller must ensure that each node comes after all nodes that it reads, and that
        all `refs` are in range."""
        meta = {"version": VERSION, "base": base, "templates": encode_templates(templates)}
        data = pack(meta, {"template": template, "refs": refs})
        return cls.decode(data, address_of(data))

    @classmethod
    def decode(cls, data: bytes | pa.Buffer, address: str) -> "Structure":
        """Decode the structure in `data`, whose address is `address`. Raise `DvuError` if the bytes are malformed."""
        meta, row = unpack(data, "structure")
        templates = decode_templates(meta["templates"])
        template = row["template"]
        starts = np.zeros(len(template) + 1, np.int64)
        np.cumsum(np.array([each.arity for each in templates], np.int64)[template], out=starts[1:])
        uses = np.bincount(template, minlength=len(templates))
        return cls(meta["base"], templates, template, row["refs"], starts, uses, data, address)


@dataclass(frozen=True, slots=True, eq=False)
class StructurePacket:
    """A packet that refers to the structure at `address`. It tells a worker to compute `nodes`, starting from `values`.

    `nodes` is a mask with an item for each node; None means all nodes. `values` are the values of some slots, in
    ascending order of the slots. `value_slots` is a mask of these slots; None means the slots of all input values.
    `data` is the structure if it is sent with the packet, otherwise empty. `store` is the URL of the blob store that
    has the structure; "" if workers need no URL. `number`, `code` and `functions` have the same meaning as in `Packet`.
    """

    number: int
    code: str
    functions: dict[str, str | None]
    address: str
    nodes: Mask | None
    value_slots: Mask | None
    values: Column
    data: bytes | pa.Buffer = b""
    store: str = ""

    def encode(self) -> bytes:
        """Return the packet as bytes."""
        meta = {
            "version": VERSION,
            "number": self.number,
            "code": self.code,
            "functions": self.functions,
            "structure": self.address,
            "store": self.store,
            "counts": [len(mask) if mask is not None else 0 for mask in (self.nodes, self.value_slots)]
            + [len(self.values)],
        }
        return pack(
            meta,
            {
                "nodes": _pack_mask(self.nodes),
                "value_slots": _pack_mask(self.value_slots),
                "structure": self.data if isinstance(self.data, bytes) else self.data.to_pybytes(),
                **self.values.pack("value"),
            },
        )

    @classmethod
    def of_columns(cls, meta: dict[str, Any], row: dict[str, Any]) -> "StructurePacket":
        """Return the packet whose metadata and columns `read_packet` returned."""
        nodes, value_slots, count = meta["counts"]
        return cls(
            meta["number"],
            meta["code"],
            meta["functions"],
            meta["structure"],
            _unpack_mask(row["nodes"], nodes),
            _unpack_mask(row["value_slots"], value_slots),
            Column.unpack("value", row, count),
            row["structure"],
            meta["store"],
        )

    def with_structure(self, structure: Structure) -> Packet:
        """Return this packet as a self-contained `Packet`, which shares the arrays of `structure`. Raise `DvuError` if
        the sizes in this packet do not match `structure`."""
        base, count = structure.base, len(structure.template)
        lengths = [mask if mask is None else len(mask) for mask in (self.nodes, self.value_slots)]
        sent = base if self.value_slots is None else int(self.value_slots.sum())
        if lengths[0] not in (None, count) or lengths[1] not in (None, base + count) or len(self.values) != sent:
            # This check is necessary, because compiled code does no bounds checks.
            raise DvuError("the sizes in a packet do not match its structure")
        kinds = np.broadcast_to(np.uint8(UNKNOWN), base + count)
        bits = np.zeros(base + count, np.int64)
        constants, old = self.values, Column(kinds[base:], bits[base:])
        if self.value_slots is not None:
            slots = np.flatnonzero(self.value_slots)
            kinds = kinds.copy()
            kinds[slots], bits[slots] = self.values.kinds, self.values.bits
            others = {int(slots[position]): value for position, value in self.values.others.items()}
            constants = Column(kinds[:base], bits[:base], {slot: v for slot, v in others.items() if slot < base})
            old = Column(kinds[base:], bits[base:], {slot - base: v for slot, v in others.items() if slot >= base})
        return Packet(
            self.number,
            self.code,
            self.functions,
            structure.templates,
            constants,
            structure.template,
            structure.refs,
            np.ones(count, np.bool_) if self.nodes is None else self.nodes,
            old,
            structure.starts,
            structure.uses,
        )


def decode(meta: dict[str, Any], row: dict[str, Any]) -> Packet | StructurePacket:
    """Return the `Packet` or `StructurePacket` whose metadata and columns `read_packet` returned. Raise `DvuError` if
    they are inconsistent."""
    try:
        return StructurePacket.of_columns(meta, row) if "structure" in meta else Packet.of_columns(meta, row)
    except Exception as error:  # noqa: BLE001 - a malformed packet may cause any exception
        raise DvuError(f"unreadable packet: {type(error).__name__}: {str(error)[:200]}") from None


def function_names(templates: Sequence[DefinitionTemplate]) -> set[str]:
    """Return the names of the functions that `templates` call."""
    return {template.function for template in templates}


def _pack_mask(mask: Mask | None) -> npt.NDArray[np.uint8]:
    return np.zeros(0, np.uint8) if mask is None else np.packbits(mask)


def _unpack_mask(bits: npt.NDArray[np.uint8], count: int) -> Mask | None:
    if len(bits) != -(-count // 8):
        raise ValueError("a mask has the wrong length")
    return np.unpackbits(bits, count=count).view(np.bool_) if count else None
