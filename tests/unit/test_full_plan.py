"""Updates with a full plan: they give the same results as packets of the affected values."""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rebaser.dvu.compiled import loader
from rebaser.dvu.planning import layout, loop_loader
from rebaser.dvu.planning.full_plan import FullGraphPlan
from rebaser.dvu.planning.packet_plan import PacketPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.planning.warm_up import warm
from rebaser.dvu.wire.packet import Results, read_packet
from rebaser.dvu.wire.structure import StructurePacket, decode
from rebaser.dvu.worker import evaluate
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser_core import thresholds
from rebaser_core.commit import Computed
from rebaser_core.errors import DvuError
from rebaser_core.state.change_set import View
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Remove, Set, Update
from rebaser_core.values import canonical
from tests.support.graphs import Book, expected, typed
from tests.support.plans import total
from tests.support.whole_plans import COMPILED, WHOLE, update

KERNEL = "rebaser.dvu.compiled.kernel"


def found_by(view: View, limits: Thresholds) -> dict[str, tuple[bytes, object]]:
    made = plan(view, limits)
    while packets := made.next_wave():
        made.absorb([part for packet in packets for part in evaluate_packet(packet)])
    computed: list[Computed] = list(made.computed())
    return {one.id: (canonical(one.value), one.fault) for one in computed}


BY_NUMBERS = ("sum", "sum", "mean", "max", "product", "coalesce", "count")
MIXED = (*BY_NUMBERS, "concat", "list", "nope")


def a_graph(rng: random.Random, size: int, functions: Sequence[str] = MIXED) -> list[Update]:
    """Draw values of all kinds. Their order is not that of their inputs."""
    updates: list[Update] = []
    for at in range(size):
        if at < 5 or rng.random() < 0.2:
            updates.append(Set(f"v{at}", rng.choice([at, at / 3, 2**62, None, True, "text", [1, 2], 1e308])))
            continue
        inputs = [f"v{max(0, at - rng.randint(1, 12))}" for _ in range(rng.randint(1, 4))]
        updates.append(Derive(f"v{at}", rng.choice(functions), {"values": tuple(inputs)}))
    rng.shuffle(updates)
    return updates


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("limits", [WHOLE, COMPILED])
@pytest.mark.parametrize("functions", [MIXED, BY_NUMBERS])
def test_what_is_swept_is_what_packets_give(seed: int, limits: Thresholds, functions: Sequence[str]) -> None:
    rng = random.Random(seed)
    book = Book(a_graph(rng, 80, functions))
    kept = StructureCache(None)
    update(book, limits, kept)
    for _ in range(4):
        ids = [id_ for id_ in book.state.cells if not book.state.cells.is_derived(id_)]
        edits: list[Update] = [
            Set(id_, rng.choice([1, 0.5, -0.0, 0.0, "other", None, 7]))
            for id_ in rng.sample(ids, min(rng.choice([1, 3, 9]), len(ids)))
        ]
        if rng.random() < 0.3:
            edits.append(Remove(rng.choice(ids)))
        edits += book.again(rng.sample(sorted(book.state.cells), 2))
        book.edit(*edits)
        with book.state.view() as one, book.state.view() as other:
            assert isinstance(plan(one, limits), FullGraphPlan)
            assert isinstance(plan(other), PacketPlan)
            assert found_by(one, limits) == found_by(other, Thresholds())
        update(book, limits, kept)
        assert typed(book.values()) == typed(expected(book.state.updates()))


@pytest.mark.parametrize("limits", [WHOLE, COMPILED, Thresholds()])
def test_what_is_derived_anew_with_the_same_result_is_up_to_date(limits: Thresholds) -> None:
    book = Book([Set("a", 1), Set("t", "text"), Set("none", None)])
    derived = {"number": "sum", "text": "concat", "list": "list", "fault": "nope"}
    book.edit(*[Derive(id_, function, {"x": ("a", "t")[id_ == "text"]}) for id_, function in derived.items()])
    book.edit(Derive("null", "coalesce", {"x": "none"}), Derive("failed", "sum", {"x": "fault"}))
    book.update(limits)
    before = typed(book.values())
    book.edit(*book.again(book.state.cells))
    assert {one.id for one in book.update(limits)} == {*derived, "null", "failed"}
    assert typed(book.values()) == before == typed(expected(book.state.updates()))


def compiled_forms() -> int:
    """Return how many variants of its functions, by argument types, this process has compiled or loaded."""
    modules = [loop_loader.load(), *(module for name, module in sys.modules.items() if name.startswith(KERNEL))]
    return sum(len(getattr(one, "signatures", ())) for module in modules for one in vars(module).values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("result_bytes", [1, 1 << 20])
@pytest.mark.parametrize("functions", [("sum",), BY_NUMBERS, MIXED])
def test_no_update_compiles_what_was_not_compiled_ahead(
    seed: int, functions: Sequence[str], result_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update would wait for the compiler, whatever the values and however many of them changed."""
    assert loader.load()
    warm()
    ahead = compiled_forms()
    monkeypatch.setattr(thresholds, "now", Thresholds(kernel_call_min_elements=0, result_bytes=result_bytes))
    in_packets = Thresholds(interpreted_max=-1, packet_bytes=300, task_min_elements=20)
    rng, book = random.Random(f"forms {seed}"), Book()
    book.edit(*a_graph(rng, 150, functions))
    book.edit(
        Set("p", 1), Set("q", 1), total("first", "p"), *(total(f"q{at}", "q") for at in range(99)), total("z", "p")
    )
    for limits in (COMPILED, in_packets, COMPILED, COMPILED):
        book.update(limits)
        given = rng.choice([1, 7, 40])
        book.edit(*(Set(f"v{rng.randrange(150)}", rng.choice([rng.random(), seed, "x"])) for _ in range(given)))
    book.update(COMPILED)
    book.edit(Set("p", 2))  # two results, far apart
    book.update(COMPILED)
    assert compiled_forms() == ahead


def test_the_structure_travels_once() -> None:
    book, kept = Book([Set("a", 1), total("b", "a"), total("c", "b", "a")]), StructureCache(None)
    sizes = []
    for value in (1, 2, 3):
        book.edit(Set("a", value))
        with book.state.view() as view:
            made = plan(view, WHOLE)
            (packet,) = made.next_wave()
            asked = decode(*read_packet(packet))
            assert isinstance(asked, StructurePacket)
            sizes.append(len(asked.data))
            made.absorb(evaluate_packet(packet, structures=kept))
            book.commit(made.computed(), view.sequence)
    assert sizes[0] > 0
    assert sizes[1:] == [0, 0]
    assert book.values()["c"].value == 6


def test_a_worker_that_has_it_not_gets_it() -> None:
    book, kept = Book([Set("a", 1), total("b", "a")]), StructureCache(None)
    assert update(book, WHOLE, kept) == 1
    book.edit(Set("a", 2))
    assert update(book, WHOLE, StructureCache(None)) == 2  # a worker that was started since
    assert book.values()["b"].value == 2


def test_a_worker_that_never_takes_it_in_is_an_error() -> None:
    book = Book([Set("a", 1), total("b", "a")])
    with book.state.view() as view:
        made = plan(view, WHOLE)
        (packet,) = made.next_wave()
        asked = decode(*read_packet(packet))
        assert isinstance(asked, StructurePacket)
        refusal = evaluate_packet(replace(asked, data=b"").encode(), structures=StructureCache(None))
        with pytest.raises(DvuError, match="although the packet contained it"):
            made.absorb(refusal)


def test_other_definitions_are_another_structure() -> None:
    book, kept = Book([Set("a", 1), Set("b", 10), total("c", "a")]), StructureCache(None)
    update(book, WHOLE, kept)
    before = layout.cached_layout(book.state.cells.columns)
    assert before is not None
    book.edit(Set("a", 2))
    update(book, WHOLE, kept)
    assert layout.cached_layout(book.state.cells.columns) is before
    book.edit(total("c", "a", "b"))
    assert layout.cached_layout(book.state.cells.columns) is None
    update(book, WHOLE, kept)
    assert book.values()["c"].value == 12


def test_only_what_is_reached_is_computed_and_only_its_inputs_travel() -> None:
    book, kept = Book([]), StructureCache(None)
    book.edit(*[Set(f"x{at}", at) for at in range(100)], *[total(f"y{at}", f"x{at}") for at in range(100)])
    book.edit(total("z", "x0", "y1"))
    update(book, WHOLE, kept)
    book.edit(Set("x0", 5))
    with book.state.view() as view:
        made = plan(view, WHOLE)
        assert made.size == 2
        asked = decode(*read_packet(made.next_wave()[0]))
    assert isinstance(asked, StructurePacket)
    assert sorted(asked.values.tolist()) == [1, 5]  # type: ignore[type-var] # x0, and y1 as it stands


def test_a_cycle_is_left_to_packets() -> None:
    book = Book([Set("a", 1), total("b", "a"), total("c", "d"), total("d", "c")])
    with book.state.view() as view:
        assert isinstance(plan(view, WHOLE), PacketPlan)


def test_little_of_a_large_change_set_is_left_to_packets() -> None:
    limits = replace(WHOLE, full_plan_reach_divisor=8)
    book = Book([Set(f"x{at}", at) for at in range(100)] + [total(f"y{at}", f"x{at}") for at in range(100)])
    with book.state.view() as view:
        assert isinstance(plan(view, limits), FullGraphPlan)
    update(book, limits, StructureCache(None))
    book.edit(Set("x0", 5))
    with book.state.view() as view:
        assert isinstance(plan(view, limits), PacketPlan)


def test_one_value_with_most_of_the_inputs_is_swept_too() -> None:
    limits = replace(WHOLE, full_plan_min_values=50, full_plan_reach_divisor=8)
    ids = [f"x{at}" for at in range(100)]
    book = Book([*(Set(id_, at) for at, id_ in enumerate(ids)), total("all", *ids), total("one", "x0")])
    update(book, limits, StructureCache(None))
    book.edit(Set("x1", 5))
    with book.state.view() as view:
        made = plan(view, limits)
        assert isinstance(made, FullGraphPlan)
        assert made.size == 1
    book.edit(Set("x0", 5))
    update(book, limits, StructureCache(None))
    assert typed(book.values()) == typed(expected(book.state.updates()))


def test_what_python_has_to_compute_is_left_to_packets() -> None:
    book = Book([Set("a", "x"), *(Derive(f"b{at}", "upper", {"value": "a"}) for at in range(10))])
    with book.state.view() as view:
        assert isinstance(plan(view, replace(WHOLE, full_plan_max_python_share=0.5)), PacketPlan)


@pytest.mark.parametrize("others", ["sum", "concat"])
def test_where_most_is_reached_all_that_compiled_code_does_is_put_right(others: str) -> None:
    """Values that Python would compute are not computed again: a plug-in may give another value each time."""
    count, kept = 30, StructureCache(None)
    book = Book([Set("a", 1), Set("b", 2), *(total(f"v{at}", "a") for at in range(count)), total("other", "b")])
    book.edit(Derive("apart", others, {"x": ("b",)}))
    update(book, WHOLE, kept)
    book.commit((Computed("other", 7, None),), book.state.last)  # an older release may have computed this
    book.edit(Set("a", 3))
    update(book, WHOLE, kept)
    values = book.values()
    assert values["v0"].value == 3
    assert values["other"].value == (2 if others == "sum" else 7)


def test_results_of_values_that_there_are_not_are_refused() -> None:
    book = Book([Set("a", 1), *(total(f"v{at}", "a") for at in range(4))])
    for nodes in ([0, 1, 2, 4], [-1, 0, 1, 2]):
        with book.state.view() as view:
            made = plan(view, WHOLE)
            [data] = evaluate_packet(made.next_wave()[0], structures=StructureCache(None))
            results = replace(Results.decode(data), nodes=np.array(nodes, np.int32))
            with pytest.raises(DvuError, match="unreadable results"):
                made.absorb([results.encode()])


@pytest.mark.parametrize("limits", [WHOLE, COMPILED, Thresholds()])
def test_results_of_other_values_than_those_asked_for_are_refused(limits: Thresholds) -> None:
    """The code that reads results does no bounds checks."""
    book = Book([Set("a", 1), Set("b", 2), total("v", "a"), Derive("w", "upper", {"x": "a"}), total("y", "b", "y0")])
    book.edit(total("y0", "w"))
    update(book, WHOLE, StructureCache(None))
    book.edit(Set("a", 3), Derive("w", "lower", {"x": "a"}))
    for garble, reason in (
        (lambda found: replace(found, number=7), "sent"),
        (lambda found: replace(found, nodes=found.nodes + len(found.nodes)), "sent|unreadable"),
        (lambda found: replace(found, faults=[*found.faults[:-1], 99]), "unknown slot"),
        (lambda found: replace(found, faults=[*found.faults[:-1], -1]), "unknown slot"),
    ):
        with book.state.view() as view:
            made = plan(view, limits)
            assert isinstance(made, FullGraphPlan) == (limits != Thresholds())
            [data] = evaluate_packet(made.next_wave()[0], structures=StructureCache(None))
            with pytest.raises(DvuError, match=reason):
                made.absorb([garble(Results.decode(data)).encode()])  # type: ignore[no-untyped-call]


def test_results_that_say_a_value_twice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "now", Thresholds(result_bytes=30))
    book = Book([Set("a", 1), *(total(f"v{at}", "a") for at in range(4))])
    with book.state.view() as view:
        made = plan(view, WHOLE)
        results = evaluate_packet(made.next_wave()[0], structures=StructureCache(None))
        assert len(results) == 2
        first, second = map(Results.decode, results)
        for again in (replace(first, part=1, last=True), replace(second, nodes=second.nodes - 1)):
            with pytest.raises(DvuError, match="do not match the packet"):
                made.absorb([results[0], again.encode()])


@pytest.mark.parametrize("result_bytes", [1, 30, 100])
def test_what_comes_in_many_parts_is_what_comes_in_one(monkeypatch: pytest.MonkeyPatch, result_bytes: int) -> None:
    functions = ("concat", "sum", "nope", "list")
    updates: list[Update] = [Set("a", 1), *(Set(f"t{at}", f"text {at}") for at in range(40))]
    updates += [Derive(f"v{at}", functions[at % 4], {"x": "a" if at % 4 == 1 else f"t{at}"}) for at in range(40)]
    book = Book(updates)
    with book.state.view() as view:
        in_one = found_by(view, WHOLE)
        monkeypatch.setattr(thresholds, "now", Thresholds(result_bytes=result_bytes))
        made = plan(view, WHOLE)
        assert isinstance(made, FullGraphPlan)
        assert len(evaluate_packet(made.next_wave()[0])) > 5
        assert found_by(view, WHOLE) == in_one
    assert len(in_one) == 40


def test_results_that_lack_a_value_are_refused() -> None:
    book = Book([Set("a", 1), total("b", "a"), total("c", "b")])
    with book.state.view() as view:
        made = plan(view, WHOLE)
        results = evaluate_packet(made.next_wave()[0], structures=StructureCache(None))
        found = evaluate.Results.decode(results[0])  # type: ignore[attr-defined]
        short = replace(found, nodes=found.nodes[:1], values=found.values.part(0, 1))
        with pytest.raises(DvuError, match="do not match the packet"):
            made.absorb([short.encode()])
