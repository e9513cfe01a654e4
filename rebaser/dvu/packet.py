"""What travels to a Spark worker and back: one packet, one Arrow IPC stream with one row.

Invariant: a packet is complete in itself. Nodes stand in topological order; an input is a slot number, first the
constants, then the nodes; no ids travel, because results name slots and the planner puts the ids back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import cbor2
import numpy as np
import pyarrow as pa

from rebaser_core.errors import DvuError
from rebaser_core.values import Json

VERSION = 1

# How one value stands in typed columns.
NULL, FALSE, TRUE, INT, FLOAT, OTHER, FAULT, MISSING, DIGEST, UNKNOWN = range(10)


@dataclass(frozen=True, slots=True)
class Digest:
    """16 bytes of blake2b over `canonical`: enough to tell whether a value is still the same."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """A value that is only a kind: in error, missing, or never computed."""

    kind: int


IN_ERROR: Final = Mark(FAULT)
NOT_THERE: Final = Mark(MISSING)
NEVER: Final = Mark(UNKNOWN)

Item: TypeAlias = Json | Digest | Mark
# A fault of the node's own: code and message. Or the slot of the input that failed or is missing.
RawFault: TypeAlias = tuple[str, str] | int


@dataclass(frozen=True, slots=True)
class Shape:
    """What definitions that differ only in their input ids share.

    `inputs` is (name, count) in declared order; a count of -1 is one id, else a list of so many ids.
    """

    function: str
    inputs: tuple[tuple[str, int], ...]
    params: dict[str, Json]

    @property
    def arity(self) -> int:
        return sum(abs(count) for _, count in self.inputs)


@dataclass(slots=True)
class Packet:
    """The columns of one packet.

    By node: `shape` (position in `shapes`), `dirty` (compute it whatever its inputs say), `old` (what stood there).
    `refs` holds the input slots of all nodes one after another. `functions` gives the fingerprint of each function
    used, None for one that the planner does not know; `code` that of the evaluator.
    """

    number: int
    code: str
    functions: dict[str, str | None] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    constants: list[Item] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    refs: list[int] = field(default_factory=list)
    dirty: bytearray = field(default_factory=bytearray)
    old: list[Item] = field(default_factory=list)

    def encode(self) -> bytes:
        """Arrow IPC bytes. A negative ref `~k` is constant k, any other a node of this packet."""
        refs = np.array(self.refs, np.int32)
        slots = np.where(refs < 0, ~refs, refs + np.int32(len(self.constants)))
        meta = {
            "version": VERSION,
            "number": self.number,
            "code": self.code,
            "functions": self.functions,
            "shapes": [[shape.function, [list(pair) for pair in shape.inputs], shape.params] for shape in self.shapes],
        }
        return _one_row(
            {
                "meta": cbor2.dumps(meta),
                "shape": np.array(self.shape, np.int32),
                "refs": slots,
                "dirty": np.frombuffer(bytes(self.dirty), np.int8),
                **_columns("constant", self.constants),
                **_columns("old", self.old),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> "Packet":
        """The packet as a worker reads it: `refs` are slots now. Raises `DvuError` for one it cannot read."""
        row = _row(data, "packet")
        meta = cbor2.loads(row["meta"])
        if meta["version"] != VERSION:
            raise DvuError(f"packet version {meta['version']}, this worker reads {VERSION}: same release needed")
        shapes = [
            Shape(function, tuple((name, count) for name, count in inputs), params)
            for function, inputs, params in meta["shapes"]
        ]
        return cls(
            meta["number"],
            meta["code"],
            meta["functions"],
            shapes,
            _items("constant", row),
            row["shape"].tolist(),
            row["refs"].tolist(),
            bytearray(row["dirty"].tobytes()),
            _items("old", row),
        )


@dataclass(slots=True)
class Results:
    """Changed nodes of one packet, or a part of them: `nodes[i]` is now `values[i]`, IN_ERROR taking from `faults`."""

    number: int
    part: int
    last: bool
    nodes: list[int] = field(default_factory=list)
    values: list[Item] = field(default_factory=list)
    faults: list[RawFault] = field(default_factory=list)

    def encode(self) -> bytes:
        meta = {"number": self.number, "part": self.part, "last": self.last, "faults": self.faults}
        nodes = np.array(self.nodes, np.int32)
        return _one_row({"meta": cbor2.dumps(meta), "nodes": nodes, **_columns("value", self.values)})

    @classmethod
    def decode(cls, data: bytes) -> "Results":
        """Raises `DvuError` for bytes that are no results."""
        row = _row(data, "results")
        meta = cbor2.loads(row["meta"])
        faults: list[RawFault] = [one if isinstance(one, int) else (one[0], one[1]) for one in meta["faults"]]
        return cls(meta["number"], meta["part"], meta["last"], row["nodes"].tolist(), _items("value", row), faults)


def weight(value: Json) -> int:
    """About how many bytes `value` takes; the same number wherever it is asked."""
    if isinstance(value, str):
        return 3 + (len(value) if value.isascii() else len(value.encode()))
    if isinstance(value, list):
        return 9 + sum([weight(child) for child in value])
    if isinstance(value, dict):
        return 9 + sum([weight(key) + weight(child) for key, child in value.items()])
    return 9


_KINDS: dict[type, int] = {type(None): NULL, int: INT, float: FLOAT, Digest: DIGEST}


def _columns(name: str, items: Sequence[Item]) -> dict[str, Any]:
    """Typed columns of `items`: one kind each, numbers apart from the rest."""
    kinds = bytearray()
    ints: list[int] = []
    floats: list[float] = []
    others: list[Json] = []
    digests: list[bytes] = []
    for item in items:
        kind = _KINDS.get(type(item), OTHER)
        if kind == FLOAT:
            floats.append(item)  # type: ignore[arg-type]
        elif kind == INT:
            ints.append(item)  # type: ignore[arg-type]
        elif kind == OTHER:
            if item is True or item is False:
                kind = TRUE if item else FALSE
            elif isinstance(item, Mark):
                kind = item.kind
            else:
                others.append(item)  # type: ignore[arg-type]
        elif kind == DIGEST:
            digests.append(item.raw)  # type: ignore[union-attr]
        kinds.append(kind)
    return {
        f"{name}_kinds": np.frombuffer(bytes(kinds), np.int8),
        f"{name}_ints": np.array(ints, np.int64),
        f"{name}_floats": np.array(floats, np.float64),
        f"{name}_others": cbor2.dumps(others) if others else b"",
        f"{name}_digests": b"".join(digests),
    }


def _items(name: str, row: dict[str, Any]) -> list[Item]:
    kinds = row[f"{name}_kinds"]
    ints: list[Item] = row[f"{name}_ints"].tolist()
    floats: list[Item] = row[f"{name}_floats"].tolist()
    if len(floats) == len(kinds):
        return floats
    if len(ints) == len(kinds):
        return ints
    packed = row[f"{name}_others"]
    raw = row[f"{name}_digests"]
    digests = iter([Digest(raw[at : at + 16]) for at in range(0, len(raw), 16)])
    sources: dict[int, Any] = {
        INT: iter(ints),
        FLOAT: iter(floats),
        OTHER: iter(cbor2.loads(packed) if packed else ()),
        DIGEST: digests,
    }
    plain: dict[int, Item] = {NULL: None, FALSE: False, TRUE: True, FAULT: IN_ERROR, MISSING: NOT_THERE, UNKNOWN: NEVER}
    return [next(sources[kind]) if kind in sources else plain[kind] for kind in kinds.tolist()]


def _one_row(columns: dict[str, Any]) -> bytes:
    arrays = []
    for value in columns.values():
        if isinstance(value, bytes):
            arrays.append(pa.array([value], pa.large_binary()))
        else:
            arrays.append(pa.LargeListArray.from_arrays(pa.array([0, len(value)], pa.int64()), pa.array(value)))
    batch = pa.record_batch(arrays, names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _row(data: bytes, what: str) -> dict[str, Any]:
    try:
        batch = pa.ipc.open_stream(data).read_next_batch()
        row: dict[str, Any] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            row[name] = column[0].as_py() if pa.types.is_large_binary(column.type) else column.values.to_numpy()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DvuError(f"unreadable {what}: {str(error)[:200]}") from None
    return row
