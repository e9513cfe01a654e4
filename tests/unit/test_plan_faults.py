"""The faults that a plan gives to values that cannot be computed, and results that do not fit the plan."""

import itertools
from dataclasses import replace

import pytest

from rebaser.dvu import faults
from rebaser.dvu.functions import registry
from rebaser.dvu.planning import subgraph
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.wire.packet import Results
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.dvu.worker.evaluator import MAX_INPUT_BYTES
from rebaser_core import thresholds
from rebaser_core.errors import DvuError
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Remove, Set, Unset
from rebaser_core.values import Fault, State, Value
from tests.support.graphs import Book, expected, typed
from tests.support.plans import after, cut, islands, total


def error_of(values: dict[str, Value], id_: str) -> Fault:
    value = values[id_]
    assert value.state is State.ERROR
    assert value.value is None
    assert value.error is not None
    return value.error


def test_a_cycle_names_its_members_and_what_hangs_on_it_names_the_cycle() -> None:
    values = after(total("b", "a"), total("a", "c"), total("c", "b"), total("d", "c"), total("e", "d"))
    fault = Fault("cycle", "these depend on each other: 'a', 'b', 'c'", "a")
    assert [error_of(values, id_) for id_ in "abc"] == [fault] * 3
    assert error_of(values, "d") == Fault("failed_input", "input 'c' failed: cycle in 'a'", "a")
    assert error_of(values, "e") == Fault("failed_input", "input 'd' failed: cycle in 'a'", "a")


def test_a_value_that_names_itself_is_a_cycle_of_one() -> None:
    assert error_of(after(total("a", "a")), "a") == Fault("cycle", "'a' depends on itself", "a")


def test_a_cycle_feeds_another_and_both_are_named() -> None:
    values = after(total("a", "b"), total("b", "a"), total("x", "y", "b"), total("y", "x"))
    assert error_of(values, "a").origin == "a"
    assert error_of(values, "x") == Fault("cycle", "these depend on each other: 'x', 'y'", "x")


def test_a_cycle_that_is_fed_by_another_through_a_value_between_is_not_in_the_order() -> None:
    book = Book([total("a", "b"), total("b", "a"), total("m", "b"), total("x", "y", "m"), total("y", "x")])
    with book.state.view() as view:
        found = subgraph.build_subgraph(view, Thresholds())
    assert sorted([*found.order.tolist(), *itertools.chain(*found.cycles)]) == list(range(5))
    book.update()
    assert error_of(book.values(), "x") == Fault("cycle", "these depend on each other: 'x', 'y'", "x")


@pytest.mark.parametrize("limits", [Thresholds(), Thresholds(packet_bytes=1)])
def test_every_graph_of_three_values_is_computed_as_a_naive_evaluator_does(limits: Thresholds) -> None:
    """This covers every way in which cycles and their dependents can be connected."""
    subsets = [[id_ for at, id_ in enumerate("abc") if bits >> at & 1] for bits in range(8)]
    for inputs in itertools.product(subsets, repeat=3):
        graph = [Derive(id_, "list", {"x": tuple(some)}) for id_, some in zip("abc", inputs, strict=True)]
        book = Book(graph)
        with book.state.view() as view:
            found = subgraph.build_subgraph(view, limits)
        assert sorted([*found.order.tolist(), *itertools.chain(*found.cycles)]) == [0, 1, 2], graph
        book.update(limits)
        assert typed(book.values()) == typed(expected(graph)), graph


def test_at_most_32_members_are_named() -> None:
    names = [f"n{at:02}" for at in range(34)]
    values = after(*(total(name, names[at - 1]) for at, name in enumerate(names)))
    message = error_of(values, "n05").message
    assert "'n31' and 2 more" in message
    assert "n32" not in message


def test_a_mended_cycle_heals_all_that_hung_on_it() -> None:
    book = Book([total("a", "b"), total("b", "a"), total("c", "b")])
    book.update()
    book.edit(Set("a", 5))
    book.update()
    assert {id_: value.value for id_, value in book.values().items()} == {"a": 5, "b": 5, "c": 5}


def test_a_missing_input_is_named_and_its_return_heals() -> None:
    book = Book([Set("x", 1), total("a", "x", "gone"), total("b", "a")])
    book.update()
    assert error_of(book.values(), "a") == Fault("missing_input", "input 'gone' does not exist", "a")
    assert error_of(book.values(), "b") == Fault("failed_input", "input 'a' failed: missing_input", "a")
    book.edit(Set("gone", 2))
    book.update()
    assert book.values()["b"] == Value(3, State.OK)
    book.edit(Remove("gone"))
    book.update()
    assert error_of(book.values(), "a").code == "missing_input"


def test_the_first_failing_input_in_declared_order_is_named() -> None:
    values = after(total("bad", "gone"), total("a", "bad", "gone"), total("b", "gone", "bad"))
    assert error_of(values, "a").code == "failed_input"
    assert error_of(values, "b").code == "missing_input"


def test_an_unset_input_is_null() -> None:
    assert after(Unset("u"), Derive("a", "list", {"u": "u"}))["a"].value == [None]


def test_an_unknown_function_is_named() -> None:
    values = after(Derive("a", "summ", {"values": "gone"}))
    assert error_of(values, "a") == Fault("unknown_function", "there is no function 'summ'", "a")


def test_a_fault_stays_short_whatever_the_ids_are() -> None:
    long = "x" * 512
    values = after(total(long, "gone"), total("b", long), total("c", "b"))
    direct, indirect = error_of(values, "b").message, error_of(values, "c").message
    assert direct.startswith("input 'xxx")
    assert direct.endswith("…' failed: missing_input")
    assert indirect.startswith("input 'b' failed: missing_input in 'xxx")
    assert indirect.endswith("…'")
    assert max(len(direct), len(indirect)) < 250


def test_a_failed_input_is_named_with_what_is_not_obvious() -> None:
    values = after(Set("word", "w"), total("own", "word"), total("near", "own"), total("far", "near"))
    assert error_of(values, "near").message == "input 'own' failed"
    assert error_of(values, "far").message == "input 'near' failed in 'own'"


def test_a_cause_is_handed_on_even_if_ids_look_like_messages() -> None:
    odd = "a' failed: cycle in 'b"
    values = after(total(odd, "gone"), total("c", odd), total("d", "c"))
    assert error_of(values, "d").message == f"input 'c' failed: missing_input in '{odd}'"


def test_inputs_that_are_too_large_to_send_are_a_fault_and_no_packet() -> None:
    text = "x" * 250_000
    count = MAX_INPUT_BYTES // len(text) + 1
    ids = [f"t{at}" for at in range(count)]
    book = Book([Set(id_, text) for id_ in ids])
    book.edit(
        Derive("all", "count", {"values": ids}),
        Derive("missing", "count", {"values": [*ids, "gone"]}),
        Derive("unknown", "nope", {"values": ids}),
        Derive("later", "count", {"values": [*ids, "some"]}),
        Derive("some", "count", {"values": ids[:2]}),
        total("after", "all"),
        Set("number", 1),
        total("failing", "number"),
        Derive("also", "count", {"values": [*ids, "failing"]}),
    )
    [wave] = cut(book, Thresholds())
    assert sum(wave) == 3  # `some`, `after` and `failing`
    found = book.values()
    too_large = f"inputs take more than {MAX_INPUT_BYTES} bytes together"
    assert error_of(found, "all") == Fault("too_large", too_large, "all")
    assert error_of(found, "missing").code == "missing_input"
    assert error_of(found, "unknown").code == "unknown_function"
    assert error_of(found, "later").code == "too_large"
    assert error_of(found, "also").code == "too_large"
    assert error_of(found, "after") == Fault("failed_input", "input 'all' failed: too_large", "all")
    book.edit(Set("number", "text"))
    cut(book, Thresholds())
    assert error_of(book.values(), "also").code == "failed_input"  # reported before the size, as in a worker


def test_results_that_are_not_complete_are_refused() -> None:
    book = Book([*islands(1, 3), *islands(2, 2)[3:]])
    with book.state.view() as view:
        made = plan(view, Thresholds(parallelism=2, task_min_elements=1))
        packets = made.next_wave()
        assert len(packets) == 2
        results = [evaluate_packet(packet) for packet in packets]
        [found] = map(Results.decode, results[1])
        beyond = replace(found, nodes=found.nodes + 1).encode()  # a third node, which only the other packet has
        with pytest.raises(DvuError, match="not sent"):
            made.absorb([*results[0], beyond])
        with pytest.raises(DvuError, match="incomplete"):
            made.absorb(results[0])
        with pytest.raises(DvuError, match="not absorbed"):
            made.next_wave()
        made.absorb([*results[1], *results[0]])
        with pytest.raises(DvuError, match="not sent"):
            made.absorb(results[0])


@pytest.mark.parametrize("missing", [0, 1, -1])
def test_results_that_lack_a_part_are_refused(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of the missing part would count as unchanged."""
    monkeypatch.setattr(thresholds, "now", Thresholds(result_bytes=1))
    with Book(islands(1, 4)).state.view() as view:
        made = plan(view)
        [packet] = made.next_wave()
        parts = evaluate_packet(packet)
        assert len(parts) > 2
        with pytest.raises(DvuError, match="incomplete"):
            made.absorb([part for part in parts if part is not parts[missing]])


def test_bytes_that_are_no_results_are_refused() -> None:
    book = Book(islands(1, 1))
    with book.state.view() as view:
        made = plan(view)
        made.next_wave()
        with pytest.raises(DvuError, match="unreadable results"):
            made.absorb([b"nonsense"])


def test_a_fault_text_of_another_release_still_gives_a_cause() -> None:
    fault = faults.failed_input("a", Fault("failed_input", "words of some other release", "z"))
    assert fault.origin == "z"
    assert "sum" in registry().functions
