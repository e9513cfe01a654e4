"""The worker's side of a dependent values update: packets in, results out.

Invariant: a packet is computed by the code that planned it, or refused.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rebaser.dvu import faults, fingerprint
from rebaser.dvu.functions.registry import FunctionRegistry, registry
from rebaser.dvu.wire import mailbox
from rebaser.dvu.wire.column import FAULT, OTHER, Column
from rebaser.dvu.wire.packet import NodeFault, Results, estimated_size, read_packet
from rebaser.dvu.wire.structure import Structure, StructurePacket, decode
from rebaser.dvu.worker.evaluator import Evaluator, ReportProgress
from rebaser.dvu.worker.structure_cache import StructureCache, process_cache
from rebaser_core import thresholds
from rebaser_core.errors import DvuError


def evaluate_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: rows (slot int32, packet binary, folder string, apart bool) to rows (slot int32, result
    binary), several a packet.

    What is null was left in `folder` (`rebaser.dvu.wire.mailbox`): the packet under its slot, a result under slot and
    number. Results leave when there are `result_bytes` of them, or no more packets.
    """
    slots: list[int] = []
    results: list[bytes | None] = []
    size = 0
    teller: mailbox.ProgressFile | None = None
    for batch in batches:
        folders = batch.column("folder").to_pylist()
        aparts = batch.column("apart").to_pylist()
        rows = zip(batch.column("slot").to_pylist(), batch.column("packet"), folders, aparts, strict=True)
        for slot, data, folder, apart in rows:
            packet = _aligned(data.as_buffer()) if data.is_valid else mailbox.get(folder, f"{slot}")
            teller = teller or mailbox.ProgressFile(folder, f"{slot}")
            for number, result in enumerate(evaluate_packet(packet, told=teller, apart=apart)):
                left = mailbox.put(folder, f"{slot}-{number}", result)
                slots.append(slot)
                results.append(None if left else result)
                size += 0 if left else len(result)
                if size >= thresholds.now.result_bytes:
                    yield _rows(slots, results)
                    slots, results, size = [], [], 0
    if slots:
        yield _rows(slots, results)


def _rows(slots: list[int], results: list[bytes | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(slots, pa.int32()), pa.array(results, pa.binary())], names=["slot", "result"])


def _aligned(data: pa.Buffer) -> bytes | pa.Buffer:
    """`data` where compiled code can read it in place."""
    return data.to_pybytes() if data.address % 8 else data


def evaluate_packet(
    data: bytes | pa.Buffer,
    functions: FunctionRegistry | None = None,
    structures: StructureCache | None = None,
    told: ReportProgress | None = None,
    apart: bool = False,
) -> list[bytes]:
    """The changed nodes of a packet as encoded `Results`, at least one, each about `result_bytes` at most.

    `told` is called with how many nodes were looked at since it was called last. `apart`: plug-ins are called in a
    process of their own, so that one that ends it fails its value only. Raises `DvuError` if this process runs
    other code than the planner's: that is nobody's value.
    """
    asked = decode(*read_packet(data))
    functions = functions or registry()
    if asked.code != fingerprint.code():
        raise DvuError("the workers run another release of rebaser than this server", code="other_code")
    known = functions.fingerprints(asked.functions)
    for name, wanted in asked.functions.items():
        if known[name] != wanted:
            raise DvuError(f"function {faults.quote(name)} is not the same on the workers", code="other_code")
    if isinstance(asked, StructurePacket):
        found = _structure(asked, structures or process_cache())
        if found is None:
            return [Results(asked.number, 0, True, np.zeros(0, np.int32), Column.of([]), [], missing=True).encode()]
        work = asked.with_structure(found)
    else:
        work = asked
    sweep = Evaluator(work, functions, told, apart=apart)
    sweep.run()
    return [part.encode() for part in _split(work.number, *sweep.results())]


def _structure(asked: StructurePacket, structures: StructureCache) -> Structure | None:
    """The structure that a packet names: what is here, or what it brings, or what the store has."""
    found = structures.get(asked.address)
    if found is None and asked.data:
        found = structures.put(asked.address, asked.data)
    if found is None and asked.store:
        found = structures.fetch(asked.address, asked.store)
    return found


def _split(number: int, nodes: npt.NDArray[Any], values: Column, raw: list[NodeFault]) -> Iterator[Results]:
    """Results in parts of about `result_bytes`."""
    ends = np.cumsum(_sizes(values, raw), dtype=np.int64)
    count = len(nodes)
    part = at = failed = 0
    while True:
        room = thresholds.now.result_bytes + (int(ends[at - 1]) if at else 0)
        end = min(max(int(np.searchsorted(ends, room, "right")), at + 1), count)
        found = values.part(at, end)
        faulty = int((found.kinds == FAULT).sum())
        yield Results(number, part, end == count, nodes[at:end], found, raw[failed : failed + faulty])
        if end == count:
            return
        at, part, failed = end, part + 1, failed + faulty


def _sizes(values: Column, raw: list[NodeFault]) -> npt.NDArray[np.int32]:
    """About how many bytes each takes."""
    sizes = np.full(len(values), 13, np.int32)
    places = np.flatnonzero(values.kinds == OTHER)
    others: Any = map(values.others.__getitem__, places.tolist())  # no digests: these are results
    sizes[places] = [7 + len(one) if type(one) is str and one.isascii() else 4 + estimated_size(one) for one in others]
    sizes[values.kinds == FAULT] = [16 if isinstance(fault, int) else 16 + len(fault[1]) for fault in raw]
    return sizes
