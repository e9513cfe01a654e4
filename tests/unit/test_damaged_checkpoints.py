"""Checkpoints that are damaged or incomplete are refused."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from rebaser_core.checkpoint import read_checkpoint, schema
from rebaser_core.commit import Commit, Kind
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Set
from tests.support.checkpoints import Rows, head, table, written
from tests.support.example_states import parts


def rewritten(
    data: bytes, rows: Callable[[Rows], object] = len, about: dict[str, Any] | None = None, **words: object
) -> bytes:
    """Return `data` with other rows, other metadata of the part, and other metadata at its end."""
    sink = pa.BufferOutputStream()
    told = {"format": schema.FORMAT, "version": schema.VERSION, "layer": "base", "first": 0} | (about or {})
    changed = table(data)
    rows(changed)
    batch = pa.RecordBatch.from_pylist(changed, schema=schema.SCHEMA)
    codes = [None if row["state"] is None else schema.STATES.to_pylist().index(row["state"]) for row in changed]
    batch = batch.set_column(
        1, schema.SCHEMA.field(1), pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), schema.STATES)
    )
    with pa.ipc.new_file(sink, schema.SCHEMA.with_metadata({schema.PART: json.dumps(told)})) as writer:
        writer.write_batch(batch, custom_metadata={schema.HEAD: json.dumps(head(data) | words)})
    return bytes(sink.getvalue().to_pybytes())


def example() -> bytes:
    """Return a part with these rows: a = 1, the sum of a and b, b (missing)."""
    state = ChangeSetState()
    updates = Set("a", 1), Derive("sum", "sum", {"values": ("a", "b")})
    state.fold(1, Commit("c", 0, Kind.REBASE, 0, "o", None, 0, delta=updates))
    (data,) = written(state).parts
    return data


def put(row: int, **values: object) -> Callable[[Rows], object]:
    return lambda rows: rows[row].update(values)


def test_rewriting_is_no_damage() -> None:
    assert parts(read_checkpoint(rewritten(example()))) == parts(read_checkpoint(example()))


def test_what_a_newer_program_adds_is_passed_over_and_what_it_changes_is_left_to_it() -> None:
    assert read_checkpoint(rewritten(example(), about={"more": 1}, less=2)).cells.keys() == {"a", "sum"}
    with pytest.raises(UnsupportedVersion):
        read_checkpoint(rewritten(example(), about={"version": 4}))


@pytest.mark.parametrize(
    "damaged",
    [
        lambda data: b"ARROW1",
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: rewritten(data, about={"format": "other"}),
        lambda data: rewritten(data, about={"version": 0.5}),
        lambda data: rewritten(data, about={"layer": "delta"}),
        lambda data: rewritten(data, about={"first": 1}),
        lambda data: rewritten(data, last=-1),
        lambda data: rewritten(data, applied=["s"]),
        lambda data: rewritten(data, attempts=[[1, 2]]),
        lambda data: rewritten(data, outcomes=[1, 0]),
        lambda data: rewritten(data, values=3),
        lambda data: rewritten(data, roots=1),
        lambda data: rewritten(data, base=[["sha256:7", 1]]),
        lambda data: rewritten(data, base=7),
        lambda data: rewritten(data, list.clear),
        lambda data: rewritten(data, put(0, id="")),
        lambda data: rewritten(data, put(0, id="sum")),
        lambda data: rewritten(data, put(0, double=1.0)),
        lambda data: rewritten(data, put(0, integer=None, double=float("nan"))),
        lambda data: rewritten(data, put(0, integer=None, json="7")),
        lambda data: rewritten(data, put(0, integer=None, json='{"a":1e999}')),
        lambda data: rewritten(data, put(0, state="absent")),
        lambda data: rewritten(data, put(0, state=None)),
        lambda data: rewritten(data, put(0, inputs=[0])),
        lambda data: rewritten(data, put(0, error_code="failed")),
        lambda data: rewritten(data, put(0, error_code="failed", error_message="m", error_origin="a")),
        lambda data: rewritten(data, put(0, state="error")),
        lambda data: rewritten(data, put(0, root=-1)),
        lambda data: rewritten(data, put(0, edited=-1)),
        lambda data: rewritten(data, put(0, edited=2)),
        lambda data: rewritten(data, put(2, edited=1)),
        lambda data: rewritten(data, edited=2),
        lambda data: rewritten(data, edited=None),
        lambda data: rewritten(data, untracked=2),
        lambda data: rewritten(data, about={"version": 2}),
        lambda data: rewritten(data, put(1, inputs=[0])),
        lambda data: rewritten(data, put(1, inputs=[0, 3])),
        lambda data: rewritten(data, put(1, inputs=[0, -1])),
        lambda data: rewritten(data, put(1, inputs=[0, None])),
        lambda data: rewritten(data, put(1, inputs=None)),
        lambda data: rewritten(data, put(1, state="absent")),
        lambda data: rewritten(data, put(1, definition=None)),
        lambda data: rewritten(data, put(1, definition="{}")),
        lambda data: rewritten(data, put(1, definition='{"function":1,"inputs":{"values":2},"params":{}}')),
        lambda data: rewritten(data, put(1, definition='{"function":"f","inputs":{"values":-2},"params":{}}')),
        lambda data: rewritten(data, put(1, definition='{"function":"f","inputs":{"values":1e9},"params":{}}')),
        lambda data: rewritten(data, put(1, definition='{"function":"f","inputs":{"values":9999999999},"params":{}}')),
    ],
)
def test_what_is_no_whole_checkpoint_is_refused(damaged: Callable[[bytes], bytes]) -> None:
    with pytest.raises(UnprocessableError) as caught:
        read_checkpoint(damaged(example()))
    assert caught.value.code in ("malformed", "invalid_address")
