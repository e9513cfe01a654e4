"""The code of a worker: what it computes, what counts as changed, and how failing functions are handled."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rebaser.dvu import fingerprint
from rebaser.dvu.functions import Function, FunctionError, FunctionRegistry, builtins
from rebaser.dvu.wire.equality import baseline, fault_digest, unchanged
from rebaser.dvu.wire.packet import (
    IN_ERROR,
    NEVER_COMPUTED,
    NO_VALUE,
    DefinitionTemplate,
    Item,
    NodeFault,
    PacketBuilder,
    Results,
)
from rebaser.dvu.worker import evaluator
from rebaser.dvu.worker.evaluate import evaluate_batches, evaluate_packet
from rebaser_core import thresholds
from rebaser_core.errors import DvuError
from rebaser_core.thresholds import Thresholds
from rebaser_core.values import Json, same

ONE = (("x", -1),)


def functions(**calls: Callable[[Any, Any], Any]) -> FunctionRegistry:
    own = {name: Function(name=name, call=call, takes="values") for name, call in calls.items()}
    return FunctionRegistry({**builtins(), **own}, {})


@dataclass
class Found:
    """Results with lists instead of arrays."""

    nodes: list[int]
    values: list[Item]
    faults: list[NodeFault]
    part: int
    last: bool


def found(result: bytes) -> Found:
    part = Results.decode(result)
    return Found(part.nodes.tolist(), part.values.tolist(), part.faults, part.part, part.last)


class Made:
    """A packet that is built node by node. The input of a node is ~constant, or an earlier node."""

    def __init__(self, *constants: Item) -> None:
        self.packet = PacketBuilder(1, fingerprint.code(), constants=list(constants))

    def node(self, function: str, *refs: int, dirty: bool = True, old: Item = NEVER_COMPUTED, **params: Json) -> "Made":
        packet = self.packet
        packet.template.append(len(packet.templates))
        packet.templates.append(DefinitionTemplate(function, (("values", len(refs)),), params))
        packet.refs += refs
        packet.dirty.append(dirty)
        packet.old.append(old)
        return self

    def run(self, registry: FunctionRegistry | None = None) -> Found:
        known = registry or functions()
        self.packet.functions = known.fingerprints({shape.function for shape in self.packet.templates})
        [result] = evaluate_packet(self.packet.encode(), known)
        return found(result)


# -- early cutoff ------------------------------------------------------------------------------------------------------

SAMPLES: list[Json] = [
    *(None, True, False, 0, 1, -1, 2**62, 0.0, -0.0, 1.0, 1.5, 1e300, "", "x", "1", "x" * 24, "x" * 25, "x" * 26),
    *([], [1], [1.0], [True], [[1]], ["x" * 25], {}, {"a": 1}, {"a": 1.0}, {"a": None}, {"b": 1}),  # type: ignore[list-item]
]


@pytest.mark.parametrize("old", SAMPLES)
def test_same_is_the_same_as_for_stored_values(old: Json) -> None:
    for new in SAMPLES:
        assert unchanged(baseline(old), new) == same(old, new), new


def test_what_comes_out_the_same_is_no_result_and_wakes_nobody() -> None:
    calls: list[str] = []

    def note(values: list[Json], params: dict[str, Json]) -> Json:
        calls.append(str(params["name"]))
        return values[0]

    made = Made(5)
    made.node("note", ~0, name="a", old=5).node("note", 0, name="b", dirty=False, old=5)
    assert made.run(functions(note=note)).nodes == []
    assert calls == ["a"]


def test_a_change_wakes_what_depends_on_it_and_no_more() -> None:
    made = Made(5, 6)
    made.node("sum", ~0, old=4).node("sum", 0, dirty=False, old=4).node("sum", ~1, dirty=False, old=6)
    results = made.run()
    assert (results.nodes, results.values) == ([0, 1], [5, 5])


LONG = "a text that is longer than its digest"


@pytest.mark.parametrize("old", [baseline(LONG), NEVER_COMPUTED])
def test_a_value_that_was_skipped_and_is_needed_is_computed_after_all(old: Item) -> None:
    """Only a digest of the previous value is available: it is a long text, two steps from the root."""
    text = LONG
    made = Made(text, "!")
    made.node("concat", ~0, dirty=False, old=old)
    made.node("concat", 0, dirty=False, old=old)
    made.node("concat", 1, ~1, old=NEVER_COMPUTED)
    results = made.run()
    assert (results.nodes, results.values) == ([2], [text + "!"])


def test_a_chain_of_skipped_values_is_no_recursion() -> None:
    text = "a text that is longer than its digest"
    made = Made(text)
    made.node("concat", ~0, dirty=False, old=baseline(text))
    for at in range(5000):
        made.node("concat", at, dirty=False, old=baseline(text))
    made.node("length", 5000)
    assert made.run().values == [len(text)]


def test_a_skipped_value_in_error_fails_who_needs_it() -> None:
    made = Made("x")
    made.node("abs", ~0, dirty=False, old=IN_ERROR).node("sum", 0)
    results = made.run()
    assert (results.nodes, results.faults) == ([1], [1])


def test_the_same_fault_again_is_no_result() -> None:
    old = fault_digest("failed", "text is not a number")
    assert Made("x").node("abs", ~0, old=old).run().nodes == []
    assert Made("x").node("abs", ~0, old=fault_digest("failed", "other")).run().nodes == [0]


@pytest.mark.parametrize("old", [7, 2**40, 1.5, "text"])
def test_a_fault_says_what_it_says_whatever_stood_there(old: Item) -> None:
    results = Made("x").node("abs", ~0, old=old).node("sum", 0, old=old).run()
    assert results.faults == [("failed", "text is not a number"), 1]


@pytest.mark.parametrize("value", ["x" * 1000, ["x"] * 1000, "short", [1]])
def test_the_same_text_or_list_again_is_no_result(value: Json) -> None:
    """Large values are compared by their hashes."""
    again = functions(again=lambda *_: value)
    assert Made("x").node("again", ~0, old=baseline(value)).run(again).nodes == []
    assert Made("x").node("again", ~0, old=baseline([value])).run(again).nodes == [0]


# -- inputs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [IN_ERROR, NO_VALUE])
def test_the_first_failing_input_is_named_by_its_slot(mark: Item) -> None:
    results = Made(1, mark, NO_VALUE).node("sum", ~0, ~1, ~2).run()
    assert (results.values, results.faults) == ([IN_ERROR], [1])


def test_an_unknown_function_comes_before_its_inputs() -> None:
    results = Made(NO_VALUE).node("nope", ~0).run()
    assert results.faults == [("unknown_function", "there is no function 'nope'")]


def test_inputs_come_by_name_and_lists_of_ids_as_lists() -> None:
    seen: list[object] = []
    named = Function(name="named", call=lambda inputs, params: seen.append((inputs, params)))
    packet = PacketBuilder(1, fingerprint.code(), {"named": ""}, constants=[1, 2, [3]])
    packet.templates = [
        DefinitionTemplate("named", (("a", -1), ("b", 2), ("c", 0), ("d", 1)), {"p": 1}),
        DefinitionTemplate("named", ONE, {}),
    ]
    packet.template, packet.refs = [0, 1], [~0, ~1, ~2, ~0, ~2]
    packet.dirty, packet.old = bytearray(b"\1\1"), [NEVER_COMPUTED, NEVER_COMPUTED]
    evaluate_packet(packet.encode(), FunctionRegistry({"named": named}, {}))
    assert seen == [({"a": 1, "b": [2, [3]], "c": [], "d": [1]}, {"p": 1}), ({"x": [3]}, {})]


def test_inputs_that_are_too_large_together_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_MANY_INPUTS", 2)
    monkeypatch.setattr(evaluator, "MAX_INPUT_BYTES", 1000)
    results = Made("x" * 400).node("count", ~0, ~0, ~0).node("count", ~0, ~0).run()
    assert results.faults == [("too_large", "inputs take more than 1000 bytes together")]
    assert results.values == [IN_ERROR, 2]


# -- functions that go wrong -------------------------------------------------------------------------------------------


class StrangeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this works")


def raising(error: BaseException) -> Callable[[Any, Any], Any]:
    def call(values: object, params: object) -> object:
        raise error

    return call


DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (raising(FunctionError("no", "overflow")), "overflow", "no"),
        (raising(ValueError("bad\nnews\x1b")), "failed", "ValueError: bad news "),
        (raising(KeyError("k")), "failed", "KeyError: 'k'"),
        (raising(RecursionError()), "failed", "RecursionError: "),
        (raising(MemoryError()), "failed", "MemoryError: "),
        (raising(StrangeError()), "failed", "StrangeError: "),
        (raising(ValueError("<object at 0x7f0123456789>")), "failed", "ValueError: <object at 0x…>"),
        (raising(ValueError("x" * 9999)), "failed", "ValueError: " + "x" * 300),
        (lambda *_: float("nan"), "not_finite", "the result is not a finite number"),
        (lambda *_: float("inf"), "not_finite", "the result is not a finite number"),
        (lambda *_: [{"a": float("-inf")}], "not_finite", "a number in the result is not finite"),
        (lambda *_: 2**63, "overflow", "the result does not fit in 64 bits"),
        (lambda *_: [-(2**63) - 1], "overflow", "an integer in the result does not fit in 64 bits"),
        (
            lambda *_: "x" * 300_000,
            "too_large",
            "the result cannot be stored: the value is larger than 262144 bytes: divide it into several values",
        ),
        (
            lambda *_: object(),
            "failed",
            "the result cannot be stored: an object of the type object is not a JSON value",
        ),
        (lambda *_: {1, 2}, "failed", "the result cannot be stored: an object of the type set is not a JSON value"),
        (lambda *_: {1: 2}, "failed", "the result cannot be stored: a map key must be text, not int"),
        (
            lambda *_: "\ud800",
            "failed",
            "the result cannot be stored: the text contains a lone surrogate, which is not valid Unicode: remove it",
        ),
        (
            lambda *_: DEEP,
            "failed",
            "the result cannot be stored: the value is nested deeper than 64 levels: divide it into several values",
        ),
    ],
)
def test_what_goes_wrong_in_a_function_is_its_value_s_fault(
    call: Callable[[Any, Any], Any], code: str, message: str
) -> None:
    results = Made(1).node("f", ~0).node("sum", ~0).run(functions(f=call))
    assert results.faults == [(code, message)]
    assert results.values == [IN_ERROR, 1]


def test_what_a_function_says_is_cut() -> None:
    """The message is stored with each value that fails in this way."""

    def fail(*_: Any) -> Json:
        raise FunctionError("x" * 1000)

    [(_, message)] = Made(1).node("f", ~0).run(functions(f=fail)).faults  # type: ignore[misc]
    assert message == "x" * 300


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_the_largest_integers_are_values(number: int) -> None:
    assert Made(1).node("f", ~0).run(functions(f=lambda *_: number)).values == [number]


def test_what_a_function_gives_for_json_becomes_json() -> None:
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "i": lambda *_: np.int64(7),
        "f": lambda *_: np.float32(0.5),
        "b": lambda *_: np.bool_(True),
        "t": lambda *_: (np.int64(1), 2),
    }
    made = Made(0)
    for name in calls:
        made = made.node(name)
    results = made.run(functions(**calls))
    assert repr(results.values) == "[7, 0.5, True, [1, 2]]"


# -- which release of a function ---------------------------------------------------------------------------------------


def test_a_packet_of_other_code_is_refused() -> None:
    made = Made(1).node("sum", ~0)
    made.packet.code = "other"
    with pytest.raises(DvuError, match="another release"):
        made.run()


@pytest.mark.parametrize(("here", "there"), [("1", "2"), (None, "1"), ("1", None)])
def test_a_plug_in_that_is_not_the_same_here_is_refused(here: str | None, there: str | None) -> None:
    """An error value would depend on the machine, so neither another version nor a missing plug-in causes one."""

    def registry(version: str | None) -> FunctionRegistry:
        mine = Function(name="mine", call=lambda *_: 1, fingerprint=version or "")
        return FunctionRegistry({"mine": mine} if version else {}, {})

    packet = Made(1).node("mine", ~0).packet
    packet.functions = registry(there).fingerprints(["mine"])
    with pytest.raises(DvuError, match="'mine' is missing on Spark's workers, or not the same"):
        evaluate_packet(packet.encode(), registry(here))


def test_the_fingerprint_is_that_of_the_sources() -> None:
    assert fingerprint.code() == fingerprint.code.__wrapped__()
    assert fingerprint.digest(b"ab", b"c") != fingerprint.digest(b"a", b"bc")


# -- rows --------------------------------------------------------------------------------------------------------------


def fails_with(text: str) -> Json:
    raise FunctionError(text)


def failed(part: Found) -> list[int]:
    return [int(node) for node, item in zip(part.nodes, part.values, strict=True) if item is IN_ERROR]


def test_large_results_are_split_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "now", Thresholds(result_bytes=1000))
    made = Made(*("x" * size for size in range(0, 600, 7)))
    for at in range(len(made.packet.constants)):
        made.node("concat" if at % 3 else ("abs", "upside_down")[at % 2], ~at)
    installed = functions(upside_down=lambda values, _: fails_with(f"{len(values[0])} characters"))
    made.packet.functions = installed.fingerprints(["concat", "abs", "upside_down"])
    rows = evaluate_packet(made.packet.encode(), installed)
    parts = [found(row) for row in rows]
    assert len(parts) > 5
    assert [part.part for part in parts] == list(range(len(parts)))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [node for part in parts for node in part.nodes] == list(range(len(made.packet.constants)))
    assert all(part.values.count(IN_ERROR) == len(part.faults) for part in parts)
    told = {node: fault for part in parts for node, fault in zip(failed(part), part.faults, strict=True)}
    assert all(told[at] == ("failed", f"{at * 7} characters") for at in range(3, len(made.packet.constants), 6))
    assert all(len(row) < 4000 for row in rows)


def test_rows_of_a_batch_keep_their_slot() -> None:
    packets = []
    for at in random.Random(1).sample(range(100), 5):
        made = Made(at).node("sum", ~0)
        made.packet.functions = {"sum": ""}
        packets.append(made.packet.encode())
    schema = pa.schema(
        [("index", pa.int32()), ("packet", pa.binary()), ("folder", pa.string()), ("isolate", pa.bool_())]
    )
    batches = [pa.record_batch([[at], [packet], [""], [False]], schema=schema) for at, packet in enumerate(packets)]
    found = pa.Table.from_batches(evaluate_batches(batches)).to_pylist()
    assert [row["index"] for row in found] == [0, 1, 2, 3, 4]
    assert [evaluate_packet(packet) for packet in packets] == [[row["result"]] for row in found]
