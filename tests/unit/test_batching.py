"""Many values of one definition in one call: the arguments of a vector form, and the use of its results."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rebaser.dvu import fingerprint
from rebaser.dvu.functions import Function, FunctionError, FunctionRegistry, builtins
from rebaser.dvu.wire.equality import baseline
from rebaser.dvu.wire.packet import IN_ERROR, NEVER_COMPUTED, NO_VALUE, DefinitionTemplate, Item, PacketBuilder, Results
from rebaser.dvu.worker import evaluator
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core import thresholds
from rebaser_core.thresholds import Thresholds
from rebaser_core.values import Json

COUNT = 100
ALL = list(range(COUNT))


def run(
    function: Function,
    *columns: list[Item],
    inputs: tuple[tuple[str, int], ...] = (("x", -1),),
    old: list[Item] | None = None,
    dirty: list[int] = ALL,
) -> Results:
    """Compute a group in which node i has item i of each of `columns`."""
    count = len(columns[0])
    packet = PacketBuilder(1, fingerprint.code(), constants=[item for column in columns for item in column])
    packet.templates, packet.template = [DefinitionTemplate(function.name, inputs, {"p": 1})], [0] * count
    packet.refs = [~(at + count * column) for at in range(count) for column in range(len(columns))]
    packet.dirty, packet.old = bytearray(count), old or [NEVER_COMPUTED] * count
    for at in dirty:
        packet.dirty[at] = 1
    known = FunctionRegistry({**builtins(), function.name: function}, {})
    packet.functions = known.fingerprints([function.name])
    [data] = evaluate_packet(packet.encode(), known)
    return Results.decode(data)


def never(*_: object) -> Json:
    raise AssertionError("not one by one")


def vector(call: Callable[[Any, Any], Any], *, takes: Any = "names", alone: Any = never) -> Function:
    return Function(name="f", call=alone, vector=call, takes=takes)


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ([at / 7 for at in ALL], np.float64),
        (ALL, np.int64),
        ([at % 3 == 0 for at in ALL], np.bool_),
        ([f"text {at}" for at in ALL], list),
        ([None] * COUNT, list),
        ([[at] for at in ALL], list),
        ([at if at % 2 else at / 7 for at in ALL], list),
        ([at if at % 2 else at % 3 == 0 for at in ALL], list),
        ([[1, 1.0, True, None, "text", {"a": 1}][at % 6] for at in ALL], list),
    ],
)
def test_a_column_is_an_array_where_all_are_of_one_kind(items: list[Item], kind: type) -> None:
    seen: list[Any] = []

    def call(inputs: Any, params: Any) -> Any:
        seen.append((inputs["x"], dict(params)))
        return inputs["x"]

    results = run(vector(call), items)
    [(given, params)] = seen
    assert params == {"p": 1}
    assert kind is list or given.dtype == kind
    assert list(map(repr, given if kind is list else given.tolist())) == list(map(repr, items))
    assert list(map(repr, results.values)) == list(map(repr, items))


def test_inputs_come_by_name_a_list_of_ids_as_a_tuple_of_columns() -> None:
    seen: list[Any] = []

    def call(inputs: Any, _: Any) -> Any:
        seen.append({name: type(given) for name, given in inputs.items()})
        return [list(row) for row in zip(inputs["a"], *inputs["b"], strict=True)]

    texts = [f"{at}" for at in ALL]
    results = run(vector(call), texts, texts, texts, inputs=(("a", -1), ("b", 2), ("c", 0)))  # type: ignore[arg-type]
    assert seen == [{"a": list, "b": tuple, "c": tuple}]
    assert results.values.tolist() == [[text] * 3 for text in texts]


def test_or_all_one_after_another() -> None:
    results = run(vector(lambda given, _: given[0] + given[1], takes="values"), ALL, ALL, inputs=(("x", 2),))  # type: ignore[arg-type]
    assert results.values.tolist() == [2 * at for at in ALL]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.arange(COUNT, dtype=np.float32), [float(at) for at in ALL]),
        (np.arange(COUNT, dtype=np.int8), ALL),
        (np.arange(COUNT, dtype=np.uint64), ALL),
        (np.array([f"{at}" for at in ALL]), [f"{at}" for at in ALL]),
        (pa.array([None, *ALL[1:]]), [None, *ALL[1:]]),
        (pa.chunked_array([ALL[:50], ALL[50:]]), ALL),
        (tuple(map(str, ALL)), list(map(str, ALL))),
        ([True] * COUNT, [True] * COUNT),
    ],
)
def test_results_may_be_arrays_of_any_kind(given: Any, expected: list[Json]) -> None:
    found = run(vector(lambda *_: given), ALL).values.tolist()  # type: ignore[arg-type]
    assert list(map(repr, found)) == list(map(repr, expected))


def test_what_cannot_be_stored_is_the_fault_of_its_value_alone() -> None:
    odd = [float("nan"), float("inf"), FunctionError("no", "overflow"), 2**63, object(), "\ud800", "x" * 300_000, "é"]
    results = run(vector(lambda *_: [*odd, *ALL[8:]]), ALL)  # type: ignore[arg-type]
    assert [code for code, _ in results.faults] == [  # type: ignore[misc]
        *("not_finite", "not_finite", "overflow", "overflow", "failed", "failed", "too_large")
    ]
    assert results.values.tolist() == [*[IN_ERROR] * 7, "é", *ALL[8:]]
    numbers = np.where(np.arange(COUNT) == 7, np.nan, 0.5)
    assert run(vector(lambda *_: numbers), ALL).values.tolist().index(IN_ERROR) == 7  # type: ignore[arg-type]
    texts = ["\ud800", *map(str, ALL[1:])]
    assert run(vector(lambda *_: texts), ALL).values.tolist() == [IN_ERROR, *texts[1:]]  # type: ignore[arg-type]


def test_of_many_only_those_fail_that_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "now", Thresholds(group_retry_max_values=30))
    sizes: list[int] = []

    def call(inputs: Any, _: Any) -> Any:
        sizes.append(len(inputs["x"]))
        if 7 in inputs["x"]:
            raise ValueError("seven")
        return inputs["x"]

    results = run(Function(name="f", vector=call), ALL)  # type: ignore[arg-type]
    assert results.faults == [("failed", "ValueError: seven")]
    assert results.values.tolist() == [*range(7), IN_ERROR, *range(8, COUNT)]
    assert sizes == [100, 30, *[1] * 30, 30, 30, 10]


@pytest.mark.parametrize("given", [[1], np.zeros((COUNT, 1)), np.zeros(COUNT + 1), "text", None, 5, dict.fromkeys(ALL)])
def test_an_odd_number_of_results_is_asked_for_again_one_by_one(given: Any) -> None:
    results = run(vector(lambda *_: given, alone=lambda inputs, _: -inputs["x"]), ALL)  # type: ignore[arg-type]
    assert results.values.tolist() == [-at for at in ALL]


def test_and_a_fault_where_there_is_no_other_form() -> None:
    results = run(Function(name="f", vector=lambda *_: [1, 2]), ALL)  # type: ignore[arg-type]
    assert results.faults == [("failed", "WrongResultCount: the function returned 2 results, expected 1")] * COUNT


def test_inputs_that_may_be_too_large_together_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Thresholds.highest().group_max_inputs <= evaluator._MANY_INPUTS
    monkeypatch.setattr(thresholds, "now", Thresholds(group_max_inputs=2))
    monkeypatch.setattr(evaluator, "_MANY_INPUTS", 2)
    monkeypatch.setattr(evaluator, "MAX_INPUT_BYTES", 40)
    texts: list[Item] = ["x" * (at % 2 * 40) for at in ALL]
    results = run(vector(never, alone=lambda *_: 1), texts, texts, texts, inputs=(("x", 3),))
    assert results.values.tolist() == [IN_ERROR if at % 2 else 1 for at in ALL]


def test_inputs_in_error_fail_who_needs_them_and_nobody_else() -> None:
    items: list[Item] = [*ALL[:3], IN_ERROR, NO_VALUE, *ALL[5:]]
    results = run(vector(lambda inputs, _: inputs["x"]), items)
    assert results.faults == [3, 4]
    assert results.values.tolist() == [*ALL[:3], IN_ERROR, IN_ERROR, *ALL[5:]]


@pytest.mark.parametrize(
    "values",
    [
        [at / 7 for at in ALL],
        ALL,
        [at % 2 == 0 for at in ALL],
        [f"text {at}" * (1 + at % 3) for at in ALL],
        [f"text {at}" * 9 for at in ALL],
    ],
)
def test_who_is_not_dirty_is_not_asked_and_what_comes_out_the_same_is_no_result(values: list[Item]) -> None:
    sizes: list[int] = []

    def call(inputs: Any, _: Any) -> Any:
        sizes.append(len(inputs["x"]))
        return inputs["x"]

    old = [baseline(item) for item in values]  # type: ignore[arg-type]
    old[4], old[6], old[8], old[10] = "other", 1, 2.5, baseline("other" * 9)
    results = run(vector(call), values, old=old, dirty=ALL[:50])
    assert sizes == [50]
    assert results.nodes.tolist() == [4, 6, 8, 10]
    assert results.values.tolist() == [values[4], values[6], values[8], values[10]]


def chained(length: int, width: int) -> tuple[PacketBuilder, list[int]]:
    """Return `width` chains of `length` nodes each. The nodes come in rows of one node per chain."""
    packet = PacketBuilder(1, fingerprint.code(), {"f": ""}, constants=["x"] * width)
    packet.templates, packet.template = [DefinitionTemplate("f", (("x", -1),), {})], [0] * (length * width)
    packet.refs = [~at if at < width else at - width for at in range(length * width)]
    packet.dirty, packet.old = bytearray([1] * (length * width)), [NEVER_COMPUTED] * (length * width)
    return packet, []


@pytest.mark.parametrize(("length", "width", "calls"), [(500, 1, 0), (500, 19, 0), (20, 20, 20)])
def test_a_chain_is_no_call_a_link_and_many_beside_each_other_are_one(length: int, width: int, calls: int) -> None:
    packet, sizes = chained(length, width)

    def call(inputs: Any, _: Any) -> Any:
        sizes.append(len(inputs["x"]))
        return [text + "y" for text in inputs["x"]]

    function = vector(call, alone=lambda inputs, _: inputs["x"] + "y")
    [data] = evaluate_packet(packet.encode(), FunctionRegistry({"f": function}, {}))
    assert sizes == [width] * calls
    assert Results.decode(data).values[-1] == "x" + "y" * length


def test_groups_of_two_definitions_come_each_as_one() -> None:
    """Their nodes alternate, and each needs the results of the nodes before it."""
    packet, seen = chained(2, 2 * COUNT)
    packet.templates.append(DefinitionTemplate("f", (("x", -1),), {"p": 2}))
    packet.template = [at % 2 for at in range(4 * COUNT)]

    def call(inputs: Any, params: Any) -> Any:
        seen.append((len(inputs["x"]), len(params)))  # type: ignore[arg-type]
        return inputs["x"]

    evaluate_packet(packet.encode(), FunctionRegistry({"f": vector(call)}, {}))
    assert seen == [(100, 0), (100, 1)] * 2  # type: ignore[comparison-overlap]


def test_definitions_that_few_share_are_done_one_by_one() -> None:
    packet, sizes = chained(1, 300)
    packet.templates = [DefinitionTemplate("f", (("x", -1),), {"p": at}) for at in range(101)]
    packet.template = [at % 3 // 2 * (1 + at // 3) for at in range(300)]

    def call(inputs: Any, _: Any) -> Any:
        sizes.append(len(inputs["x"]))
        return inputs["x"]

    [data] = evaluate_packet(packet.encode(), FunctionRegistry({"f": vector(call, alone=lambda *_: "one")}, {}))
    assert sizes == [200]
    assert Results.decode(data).values.tolist() == ["one" if at % 3 == 2 else "x" for at in range(300)]


def test_definitions_that_just_enough_share_are_done_once() -> None:
    """A second computation would find nothing changed, and the changes that the first one found would be lost."""
    few = thresholds.now.group_min_values
    packet, sizes = chained(1, 2 * few)
    packet.templates.append(DefinitionTemplate("f", (("x", -1),), {"p": 1}))
    packet.template = [at % 2 for at in range(2 * few)]

    def call(inputs: Any, _: Any) -> Any:
        sizes.append(len(inputs["x"]))
        return inputs["x"]

    function = vector(call, alone=lambda inputs, _: inputs["x"])
    [data] = evaluate_packet(packet.encode(), FunctionRegistry({"f": function}, {}))
    assert sizes == [few, few]
    assert Results.decode(data).values.tolist() == ["x"] * (2 * few)


def test_a_function_has_one_form_at_least() -> None:
    with pytest.raises(TypeError, match="'f' has neither call nor vector"):
        Function(name="f")
