"""Fuzz targets for payloads: blobs, parts of checkpoints, single values, columns."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from typing import Any

import cbor2
import numpy as np
import pyarrow as pa

from rebaser.dvu.wire.framing import pack, unpack
from rebaser_core.blobs.address import address_of
from rebaser_core.checkpoint import open_checkpoint, schema
from rebaser_core.commit import Kind
from rebaser_core.encoding.envelope import CBOR, JSON, dumps, loads
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.messages import decode_delta, decode_updates_blob
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.values import same
from tests.fuzz.mutate import Mutator, as_cbor
from tests.fuzz.refusals import refused
from tests.support.checkpoints import restored
from tests.support.examples import examples

INPUTS: dict[str, Any] = {
    "price": 9.5, "vat": 0, "a": 3, "b": 3.5, "name": "aaaa\U0001f600", "items": [1, 2.5, None, "x", [1]],
    "m": {"k": "v", "": {}},
}  # fmt: skip


def sequence(data: bytes) -> list[Any]:
    """Return the items of a CBOR sequence; some blobs are such sequences."""
    source, items = BytesIO(data), []
    while source.tell() < len(data):
        items.append(cbor2.load(source))
    return items


def make_blob(*kinds: str) -> Callable[[Mutator], bytes]:
    valid = [one.path.read_bytes() for one in examples() if one.name.startswith(kinds) and one.name.endswith(".cbor")]
    trees = [sequence(data) for data in valid]

    def make(mutator: Mutator) -> bytes:
        data = mutator.chance.choice(valid)
        if mutator.often(0.6):
            made = mutator.tree(mutator.chance.choice(trees))
            data = b"".join([as_cbor(item) for item in (made if isinstance(made, list) else [made])])
        return mutator.damaged(data, valid) if mutator.often(0.5) else data

    return make


def make_value(mutator: Mutator) -> bytes:
    value = mutator.tree(INPUTS)
    data = as_cbor(value) if mutator.often(0.5) else json.dumps(value, default=str, skipkeys=True).encode()
    return mutator.damaged(data) if mutator.often(0.7) else data


PARTS = {
    address_of(data): data for one in examples() if one.name.endswith(".arrow") and (data := one.path.read_bytes())
}


def make_part(mutator: Mutator) -> bytes:
    """Return a part of a checkpoint with other rows, other metadata or other bytes."""
    data = mutator.chance.choice(list(PARTS.values()))
    if mutator.often(0.6):
        with suppress(pa.ArrowException, ValueError, TypeError, OverflowError):  # not every damaged part can be written
            data = rewritten(mutator, pa.ipc.open_file(data))
    return mutator.damaged(data, list(PARTS.values())) if mutator.often(0.5) else data


def rewritten(mutator: Mutator, part: pa.ipc.RecordBatchFileReader) -> bytes:
    sink, about = pa.BufferOutputStream(), part.schema.metadata
    if mutator.often(0.2):
        about = noted(mutator, about)
    with pa.ipc.new_file(sink, schema.SCHEMA.with_metadata(about)) as writer:
        for number in range(part.num_record_batches):
            batch, metadata = part.get_batch_with_custom_metadata(number)
            if batch.num_rows and mutator.often(0.6):
                rows = mutator.tree(batch.to_pylist())
                batch = pa.RecordBatch.from_pylist(rows, schema=schema.SCHEMA)
                batch = batch.set_column(1, schema.SCHEMA.field(1), of_codes(batch.column(1)))
            if metadata and mutator.often(0.4):
                metadata = noted(mutator, metadata)
            writer.write_batch(batch, custom_metadata=dict(metadata) if metadata else None)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def of_codes(states: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the column with the dictionary that all parts have, unless the damage added other words."""
    words, known = states.to_pylist(), schema.STATES.to_pylist()
    if not {*words} <= {None, *known}:
        return states
    codes = [None if word is None else known.index(word) for word in words]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), schema.STATES)


def noted(mutator: Mutator, metadata: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return {
        key: json.dumps(mutator.tree(json.loads(text)), skipkeys=True).encode(errors="surrogatepass")
        for key, text in dict(metadata).items()
    }


def read_part(data: bytes) -> ChangeSetState:
    """Return the state whose newest part is `data`. Earlier parts, if any, are undamaged."""
    reader = open_checkpoint(data)
    for part in reader.before:
        if part.address not in PARTS:
            raise UnprocessableError("there is no such part")
        reader.add(PARTS[part.address])
    reader.add(data)
    return reader.finish()[0]


def check_checkpoint(data: bytes) -> None:
    state = refused(lambda: read_part(data))
    if isinstance(state, ChangeSetState):
        shown = state.values()
        assert restored(state).values().keys() == shown.keys()


def check_blob(data: bytes) -> None:
    refused(lambda: decode_updates_blob(data))
    for kind in (Kind.REBASE, Kind.DVU):
        refused(lambda kind=kind: decode_delta(kind, data))  # type: ignore[misc]


def check_value(data: bytes) -> None:
    """Check JSON and CBOR: the value is read and written back unchanged, or refused."""
    for content_type in (JSON, CBOR):
        value = refused(lambda content_type=content_type: loads(content_type, data))  # type: ignore[misc]
        if not isinstance(value, RebaserError):
            for way in (JSON, CBOR):
                assert same(loads(way, dumps(way, value)), value)  # type: ignore[arg-type]


COLUMNS = pack(
    {"number": 1, "nodes": [3, 0, 3], "faults": [["failed", "why"], 5]},
    {"nodes": np.arange(3, dtype=np.int32), "value_bits": np.ones(2, np.int64), "value_others": as_cbor(["a", [1.5]])},
)


def make_columns(mutator: Mutator) -> bytes:
    """Return data between a server and Spark's workers with another head or other bytes."""
    data = COLUMNS
    if mutator.often(0.6):
        head = as_cbor(mutator.tree(cbor2.loads(COLUMNS[8:])))
        head += bytes(-len(head) % 8)
        data = b"RBC1" + len(head).to_bytes(4, "little") + head + COLUMNS[-40:]
    return mutator.damaged(data, (COLUMNS,)) if mutator.often(0.5) else data


def check_columns(data: bytes) -> None:
    found = refused(lambda: unpack(data, "results"))
    if isinstance(found, tuple):
        meta, columns = found
        assert sum(len(column) if isinstance(column, bytes) else column.nbytes for column in columns.values()) <= len(
            data
        )
        again = unpack(pack(meta, columns), "results")
        assert again[1].keys() == columns.keys()
