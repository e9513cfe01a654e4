"""Computes packets in a Spark worker: `evaluate_batches` is the function that Spark calls.

Invariant: a worker refuses a packet unless it runs the same code as the planner of the packet.
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
from rebaser.dvu.worker.running_function import watched
from rebaser.dvu.worker.structure_cache import StructureCache, process_cache
from rebaser_core import thresholds
from rebaser_core.errors import DvuError

# The codes of the errors of a worker that reach the server. Spark passes on only the text of an exception.
CODES = ("blob_corrupt", "blob_missing", "blob_store", "other_code")


def evaluate_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the results of the packets in `batches`. This is the function for `mapInArrow`.

    The rows of `batches` are (index int32, packet binary, folder string, isolate bool). The rows of the results are
    (index int32, result binary); there is at least one row for each packet.

    If a packet or result is null, it is in a file in the mailbox `folder` (`rebaser.dvu.wire.mailbox`). The file is
    called `INDEX` for a packet, and `INDEX-NUMBER` for each result of that packet. A batch of results is yielded when
    it reaches `result_bytes` bytes, and at the end.

    If a `DvuError` has one of `CODES`, its text begins with the code in brackets.
    """
    try:
        yield from _evaluate_batches(batches)
    except DvuError as error:
        if error.code not in CODES:
            raise
        raise DvuError(f"[{error.code}] {error.message}", code=error.code) from None


def _evaluate_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    indexes: list[int] = []
    results: list[bytes | None] = []
    size = 0
    progress: mailbox.ProgressFile | None = None
    for batch in batches:
        folders = batch.column("folder").to_pylist()
        isolates = batch.column("isolate").to_pylist()
        rows = zip(batch.column("index").to_pylist(), batch.column("packet"), folders, isolates, strict=True)
        for index, data, folder, isolate in rows:
            packet = _aligned(data.as_buffer()) if data.is_valid else mailbox.get(folder, f"{index}")
            progress = progress or mailbox.ProgressFile(folder, f"{index}")
            progress.begin(index)
            with watched(folder, f"{index}"):
                found = evaluate_packet(packet, report_progress=progress, isolate=isolate)
            for number, result in enumerate(found):
                posted = mailbox.put(folder, f"{index}-{number}", result)
                indexes.append(index)
                results.append(None if posted else result)
                size += 0 if posted else len(result)
                if size >= thresholds.now.result_bytes:
                    yield _rows(indexes, results)
                    indexes, results, size = [], [], 0
    if indexes:
        yield _rows(indexes, results)


def _rows(indexes: list[int], results: list[bytes | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(indexes, pa.int32()), pa.array(results, pa.binary())], names=["index", "result"])


def _aligned(data: pa.Buffer) -> bytes | pa.Buffer:
    """Return `data`, or a copy of it if it is not aligned to 8 bytes, as compiled code requires."""
    return data.to_pybytes() if data.address % 8 else data


def evaluate_packet(
    data: bytes | pa.Buffer,
    functions: FunctionRegistry | None = None,
    structures: StructureCache | None = None,
    report_progress: ReportProgress | None = None,
    isolate: bool = False,
) -> list[bytes]:
    """Compute a packet. Return its changed nodes as a list of encoded `Results`. The list has at least one item, and
    each item has at most about `result_bytes` bytes.

    `report_progress` is called with the number of nodes that were visited since the last call. If `isolate` is true,
    plug-ins are called in a child process: if a plug-in then ends its process, only its value fails. Raise `DvuError`
    if this process and the planner do not run the same code. This error makes the job fail, and no value gets a fault.
    """
    packet = decode(*read_packet(data))
    functions = functions or registry()
    if packet.code != fingerprint.code():
        raise DvuError(
            "Spark's workers run another release or other code of Rebaser than this server: install the same release",
            code="other_code",
        )
    installed = functions.fingerprints(packet.functions)
    for name, wanted in packet.functions.items():
        if installed[name] != wanted:
            raise DvuError(
                f"function {faults.quote(name)} is missing on Spark's workers, or not the same as on this server:"
                " install the same plug-in on both",
                code="other_code",
            )
    if isinstance(packet, StructurePacket):
        structure = _structure(packet, structures or process_cache())
        if structure is None:
            no_nodes = np.zeros(0, np.int32)
            return [Results(packet.number, 0, True, no_nodes, Column.from_items([]), [], missing=True).encode()]
        packet = packet.with_structure(structure)
    evaluator = Evaluator(packet, functions, report_progress, isolate=isolate)
    evaluator.run()
    return [part.encode() for part in _split(packet.number, *evaluator.results())]


def _structure(packet: StructurePacket, structures: StructureCache) -> Structure | None:
    """Return the structure that a packet refers to, from the cache, the packet, or the blob store, in this order; None
    if none of these has it."""
    structure = structures.get(packet.address)
    if structure is None and packet.data:
        structure = structures.put(packet.address, packet.data)
    if structure is None and packet.store:
        structure = structures.fetch(packet.address, packet.store)
    return structure


def _split(number: int, nodes: npt.NDArray[Any], values: Column, raw: list[NodeFault]) -> Iterator[Results]:
    """Yield the results in parts of about `result_bytes` bytes each. Even without results, yield one part."""
    ends = np.cumsum(_sizes(values, raw), dtype=np.int64)
    count = len(nodes)
    part = start = first_fault = 0
    while True:
        limit = thresholds.now.result_bytes + (int(ends[start - 1]) if start else 0)
        end = min(max(int(np.searchsorted(ends, limit, "right")), start + 1), count)
        part_values = values.part(start, end)
        next_fault = first_fault + int((part_values.kinds == FAULT).sum())
        yield Results(number, part, end == count, nodes[start:end], part_values, raw[first_fault:next_fault])
        if end == count:
            return
        start, part, first_fault = end, part + 1, next_fault


def _sizes(values: Column, raw: list[NodeFault]) -> npt.NDArray[np.int32]:
    """Return the approximate number of bytes of each result."""
    sizes = np.full(len(values), 13, np.int32)
    positions = np.flatnonzero(values.kinds == OTHER)
    others: Any = map(values.others.__getitem__, positions.tolist())  # results hold no digests
    sizes[positions] = [
        7 + len(value) if type(value) is str and value.isascii() else 4 + estimated_size(value) for value in others
    ]
    sizes[values.kinds == FAULT] = [16 if isinstance(fault, int) else 16 + len(fault[1]) for fault in raw]
    return sizes
