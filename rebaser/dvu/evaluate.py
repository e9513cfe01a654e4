"""The worker's side of a dependent values update: computes one packet.

Invariant: early cutoff. A node is computed if it is marked dirty or one of its inputs changed, and it counts as
changed only if value and state are not the same as before (`rebaser_core.values.same`). Nobody else is woken.

Two liberties, both safe: a fault that names another value always counts as changed (the planner, which knows the
ids, compares it), and a node that is skipped is computed after all if somebody needs a value of which only a digest
is at hand.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from rebaser.dvu import faults, fingerprint
from rebaser.dvu.functions.base import Function, FunctionError
from rebaser.dvu.functions.registry import Registry, registry
from rebaser.dvu.packet import (
    IN_ERROR,
    NEVER,
    Digest,
    Item,
    Mark,
    Packet,
    RawFault,
    Results,
    Shape,
    weight,
)
from rebaser_core.errors import DvuError, UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.values import INT64_MAX, INT64_MIN, Json, canonical, check_json

RESULT_BYTES = 4 * 1024 * 1024  # about as much as one row of results carries
MAX_INPUT_BYTES = 64 * 1024 * 1024  # all inputs of one value together
_MANY_INPUTS = MAX_INPUT_BYTES // DEFAULT_LIMITS.max_value_bytes  # fewer cannot be too large

_SHORT = 24  # characters of a text that is no longer than its digest

_KNOWN, _FAULTY, _SKIPPED = range(3)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")

Caller = Callable[[list[Json]], Json]


def evaluate_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: rows (slot int32, packet binary) to rows (slot int32, result binary), several a packet."""
    for batch in batches:
        for slot, data in zip(batch.column("slot").to_pylist(), batch.column("packet"), strict=True):
            for result in evaluate_packet(data.as_py()):
                yield pa.record_batch(
                    [pa.array([slot], pa.int32()), pa.array([result], pa.binary())], names=["slot", "result"]
                )


def evaluate_packet(data: bytes, functions: Registry | None = None) -> list[bytes]:
    """The changed nodes of a packet as encoded `Results`, at least one, each about `RESULT_BYTES` at most.

    Raises `DvuError` if this process runs other code than the planner's: that is nobody's value.
    """
    packet = Packet.decode(data)
    functions = functions or registry()
    if packet.code != fingerprint.code():
        raise DvuError("the workers run another release of rebaser than this server", code="other_code")
    here = functions.fingerprints(packet.functions)
    for name, wanted in packet.functions.items():
        if here[name] != wanted:
            raise DvuError(f"function {faults.quote(name)} is not the same on the workers", code="other_code")
    run = _Run(packet, functions)
    run.run()
    return [part.encode() for part in _split(packet.number, run.changed_nodes, run.values, run.faults)]


def same_as(old: Item, value: Json) -> bool:
    """Whether `value` is what stood there, given as the value itself or its digest."""
    kind = type(value)
    if kind is float:
        return type(old) is float and old == value and (value != 0 or math.copysign(1, old) == math.copysign(1, value))
    if kind is int or kind is bool or value is None or (kind is str and type(old) is str):
        return type(old) is kind and old == value
    return type(old) is Digest and old.raw == digest(canonical(value))


def remember(value: Json) -> Item:
    """A value as `same_as` needs it: what is small as it is, the rest as a digest."""
    if value is None or isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _SHORT):
        return value
    return Digest(digest(canonical(value)))


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def own_fault(code: str, message: str) -> Digest:
    """A fault that names no other value, as `old` carries it."""
    return Digest(digest(f"fault {code} {message}".encode()))


class _Run:
    """One pass over a packet. Slots number the constants first, then the nodes."""

    def __init__(self, packet: Packet, functions: Registry) -> None:
        self.base = base = len(packet.constants)
        count = len(packet.shape)
        self.slots: list[Any] = [*packet.constants, *([None] * count)]
        self.status = bytearray(base + count)
        for slot, constant in enumerate(packet.constants):
            if type(constant) is Mark:
                self.status[slot] = _FAULTY
        self.packet = packet
        self.callers = [_caller(shape, functions) for shape in packet.shapes]
        arity = [shape.arity for shape in packet.shapes]
        self.starts = starts = [0]
        at = 0
        for shape in packet.shape:
            at += arity[shape]
            starts.append(at)
        self.changed_nodes: list[int] = []
        self.values: list[Item] = []
        self.faults: list[RawFault] = []

    def run(self) -> None:
        """Compute what is dirty or woken, in order."""
        packet, starts, refs, status, base = self.packet, self.starts, self.packet.refs, self.status, self.base
        dirty, old = packet.dirty, packet.old
        changed = bytearray(len(status))
        for node in range(len(packet.shape)):
            inputs = refs[starts[node] : starts[node + 1]]
            if not dirty[node] and not any(map(changed.__getitem__, inputs)):
                self._skip(node, old[node])
                continue
            outcome = self._compute(node, inputs)
            if outcome is None:
                value = self.slots[base + node]
                if same_as(old[node], value):
                    continue
                self.values.append(value)
            else:
                if type(outcome) is tuple and old[node] == own_fault(*outcome):
                    continue
                self.values.append(IN_ERROR)
                self.faults.append(outcome)
            changed[base + node] = 1
            self.changed_nodes.append(node)

    def _skip(self, node: int, old: Item) -> None:
        slot = self.base + node
        if type(old) is Digest or old is NEVER:
            self.status[slot] = _SKIPPED
        elif type(old) is Mark:
            self.status[slot] = _FAULTY
        else:
            self.slots[slot] = old

    def _compute(self, node: int, inputs: list[int]) -> RawFault | None:
        """Put the value of `node` into its slot, or return its fault."""
        status, slot = self.status, self.base + node
        shape = self.packet.shape[node]
        caller = self.callers[shape]
        if isinstance(caller, tuple):
            status[slot] = _FAULTY
            return caller
        slots = self.slots
        values = []
        for ref in inputs:
            if status[ref]:
                if status[ref] == _SKIPPED:
                    self._catch_up(ref)
                if status[ref] == _FAULTY:
                    status[slot] = _FAULTY
                    return ref
            values.append(slots[ref])
        if len(values) > _MANY_INPUTS and sum(map(weight, values)) > MAX_INPUT_BYTES:
            status[slot] = _FAULTY
            return faults.inputs_too_large(MAX_INPUT_BYTES)
        try:
            value = caller(values)
            _check(value)
        except Exception as error:  # noqa: BLE001 - whatever a function raises is its value's fault
            status[slot] = _FAULTY
            return _fault_of(error)
        slots[slot] = value
        status[slot] = _KNOWN
        return None

    def _catch_up(self, slot: int) -> None:
        """Compute a skipped node, and first what it needs of skipped ones; nothing here counts as changed."""
        refs, starts, status, base = self.packet.refs, self.starts, self.status, self.base
        stack = [slot]
        while stack:
            node = stack[-1] - base
            inputs = refs[starts[node] : starts[node + 1]]
            needed = [ref for ref in inputs if status[ref] == _SKIPPED]
            if needed:
                stack.extend(needed)
                continue
            stack.pop()
            if status[base + node] == _SKIPPED:
                self._compute(node, inputs)


def _caller(shape: Shape, functions: Registry) -> Caller | tuple[str, str]:
    """What turns the input values of one definition into a result; or the fault of a function nobody has."""
    function: Function | None = functions.functions.get(shape.function)
    if function is None:
        return faults.unknown_function(shape.function)
    call, params = function.call, shape.params
    if function.takes == "values":
        return lambda values: call(values, params)
    if all(count < 0 for _, count in shape.inputs):
        names = [name for name, _ in shape.inputs]
        return lambda values: call(dict(zip(names, values, strict=True)), params)
    return lambda values: call(_named(shape, values), params)


def _named(shape: Shape, values: list[Json]) -> dict[str, Json]:
    named: dict[str, Json] = {}
    at = 0
    for name, count in shape.inputs:
        named[name] = values[at] if count < 0 else values[at : at + count]
        at += abs(count)
    return named


def _check(value: Json) -> None:
    """Raise unless `value` can be stored."""
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise FunctionError("the result is not a finite number", faults.NOT_FINITE)
    elif kind is int:
        if not INT64_MIN <= value <= INT64_MAX:  # type: ignore[operator]
            raise FunctionError("the result does not fit in 64 bits", faults.OVERFLOW)
    elif kind is not bool:
        check_json(value)


def _fault_of(error: Exception) -> tuple[str, str]:
    if isinstance(error, FunctionError):
        return error.code, str(error)[:300]
    if isinstance(error, UnprocessableError):  # from `check_json`: what the function returned is no storable value
        if "not finite" in error.message:
            return faults.NOT_FINITE, "a number in the result is not finite"
        if "64 bits" in error.message:
            return faults.OVERFLOW, "an integer in the result does not fit in 64 bits"
        code = faults.TOO_LARGE if error.code == "too_large" else faults.FAILED
        return code, f"the result cannot be stored: {error.message}"
    try:
        text = str(error)[:300]
    except Exception:  # noqa: BLE001 - the text of a foreign exception is foreign code too
        text = ""
    text = "".join(char if char.isprintable() else " " for char in text)
    return faults.FAILED, _ADDRESS.sub("0x…", f"{type(error).__name__}: {text}")


def _split(number: int, nodes: list[int], values: list[Item], raw: list[RawFault]) -> Iterator[Results]:
    """Results in parts of about `RESULT_BYTES`."""
    part = Results(number, 0, last=False)
    room = RESULT_BYTES
    at = 0
    for node, value in zip(nodes, values, strict=True):
        if value is IN_ERROR:
            fault = raw[at]
            at += 1
            size = 16 if isinstance(fault, int) else 16 + len(fault[1])
        else:
            size = 4 + weight(value)  # type: ignore[arg-type]
        if size > room and part.nodes:
            yield part
            part = Results(number, part.part + 1, last=False)
            room = RESULT_BYTES
        room -= size
        part.nodes.append(node)
        part.values.append(value)
        if value is IN_ERROR:
            part.faults.append(fault)
    part.last = True
    yield part
