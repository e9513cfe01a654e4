"""The packet plan: which values are affected, how they are divided, and the faults of values that cannot be
computed."""

import random

import numpy as np
import pytest

from rebaser.dvu.planning import subgraph
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.update import still_valid
from rebaser.dvu.wire.packet import Packet
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core.commit import Computed
from rebaser_core.thresholds import Thresholds
from rebaser_core.updates import Derive, Recompute, Remove, Set, Unset, Update
from tests.support.graphs import Book, run_here
from tests.support.plans import cut, islands, total


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_plan_holds_what_is_affected_and_not_the_change_set(size: int) -> None:
    book = Book([Set("a", 1), total("b", "a"), total("c", "b")])
    book.edit(*[update for at in range(size) for update in (Set(f"x{at}", at), total(f"y{at}", f"x{at}"))])
    book.update()
    book.edit(Set("a", 2))
    with book.state.view() as view:
        found = subgraph.build_subgraph(view, Thresholds())
    assert (len(found.rows), len(found.idx), len(found.outside)) == (2, 2, 1)


@pytest.mark.parametrize("interpreted_max", [-1, 3, 30, 39, 40, 60, 10_000])
def test_what_changed_and_is_asked_for_anew_may_be_more_than_there_is(interpreted_max: int) -> None:
    """All values were edited, and all are to be recomputed, so each counts twice."""
    book = Book([Set("a", 1), *(total(f"b{at}", "a") for at in range(39))])
    book.update()
    book.edit(*book.state.updates(), recompute=[Recompute()])
    with book.state.view() as view:
        found = subgraph.build_subgraph(view, Thresholds(interpreted_max=interpreted_max))
    assert len(found.rows) == 39


def test_what_names_an_input_no_more_is_not_affected_by_it() -> None:
    book = Book([Set("a", 1), Set("other", 1), total("b", "a"), total("c", "a")])
    book.update()
    book.edit(total("c", "other"))
    book.update()
    book.edit(Set("a", 2))
    with book.state.view() as view:
        found = subgraph.build_subgraph(view, Thresholds())
        assert [view.columns.ids[row] for row in found.rows.tolist()] == ["b"]


def test_nothing_to_do_is_no_wave() -> None:
    book = Book([Set("a", 1), total("b", "a")])
    book.update()
    with book.state.view() as view:
        made = plan(view)
        assert (made.size, made.next_wave(), made.computed()) == (0, [], ())  # type: ignore[comparison-overlap]


def test_a_change_that_does_not_show_wakes_nobody_further() -> None:
    book = Book([Set("a", 1), Derive("sign", "cel", {"a": "a"}, {"expr": "a > 0"}), Derive("c", "list", {"s": "sign"})])
    book.update()
    book.edit(Set("a", 2))
    with book.state.view() as view:
        [packet] = map(Packet.decode, plan(view).next_wave())
    assert packet.dirty.tolist() == [True, False]  # the second node is computed only if the first changes
    assert book.update() == ()


def test_a_root_wakes_its_dependents_even_if_it_is_what_it_was() -> None:
    """Its old value is unknown. It may have been another one when the dependents were computed."""
    book = Book([Set("a", 1), total("b", "a")])
    book.update()
    book.edit(Set("a", 2))
    book.edit(Set("a", 1))
    with book.state.view() as view:
        [packet] = plan(view).next_wave()
    assert Packet.decode(packet).dirty.tolist() == [True]


def test_a_chain_of_twenty_thousand_needs_no_recursion() -> None:
    book = Book([Set("v0", 1), *(total(f"v{at}", f"v{at - 1}") for at in range(1, 20_001))])
    book.update()
    assert book.values()["v20000"].value == 1


def test_a_cycle_of_twenty_thousand_is_found() -> None:
    size = 20_000
    book = Book([total(f"v{at}", f"v{(at + 1) % size}") for at in range(size)])
    book.update()
    error = book.values()["v77"].error
    assert error is not None
    assert (error.code, error.origin) == ("cycle", "v0")
    assert error.message.endswith("and 19968 more")


def test_little_work_is_one_packet() -> None:
    assert cut(Book(islands(20, 10)), Thresholds()) == [[200]]


def test_islands_are_dealt_out_to_as_many_packets_as_run_at_once() -> None:
    assert cut(Book(islands(40, 10)), Thresholds(parallelism=2, task_min_elements=100)) == [[200, 200]]
    assert cut(Book(islands(40, 10)), Thresholds(parallelism=4, task_min_elements=100)) == [[100, 100, 100, 100]]


def test_two_packets_are_made_of_enough_work_for_two() -> None:
    book = Book(islands(40, 10))  # 400 values with one input each
    assert cut(book, Thresholds(parallelism=2, task_min_elements=401)) == [[400]]
    book = Book(islands(40, 10))
    assert cut(book, Thresholds(parallelism=2, task_min_elements=400)) == [[200, 200]]


def test_an_island_stays_whole_where_it_fits_into_a_packet() -> None:
    [wave] = cut(Book(islands(10, 10)), Thresholds(packet_bytes=900, parallelism=1, task_min_elements=10))
    assert sum(wave) == 100
    assert all(count % 10 == 0 for count in wave)
    assert len(wave) > 1
    book = Book([Set("a", 1), total("b", "a"), *islands(1, 3)])
    assert cut(book, Thresholds(packet_bytes=150)) == [[1, 3]]


def test_crumbs_get_no_packet_of_their_own() -> None:
    book = Book([*islands(1, 100), *islands(3, 1)[3:]])
    assert len(cut(book, Thresholds(parallelism=2, task_min_elements=90))[0]) == 1


def test_an_island_that_does_not_fit_is_cut_along_its_levels() -> None:
    book = Book(islands(1, 30))
    waves = cut(book, Thresholds(packet_bytes=400))
    assert [len(wave) for wave in waves] == [1] * len(waves)
    assert len(waves) > 1
    assert sum(sum(wave) for wave in waves) == 30
    assert book.values()["0/30"].value == 0


def test_a_wide_level_that_does_not_fit_is_one_wave() -> None:
    book = Book(
        [Set("a", 1), *(total(f"v{at}", "a") for at in range(100)), total("all", *(f"v{at}" for at in range(100)))]
    )
    first, last = cut(book, Thresholds(packet_bytes=1000))
    assert len(first) > 1
    assert (sum(first), last) == (100, [1])
    assert book.values()["all"].value == 100


def test_later_waves_hold_only_what_is_woken() -> None:
    sign = {"expr": "a > 0"}
    book = Book([Set("a", 1), Derive("b", "cel", {"a": "a"}, sign), *(total(f"v{at}") for at in range(3))])
    book.edit(Derive("c", "list", {"b": "b"}), Derive("d", "list", {"c": "c"}))
    limits = Thresholds(packet_bytes=1)
    assert len(cut(book, limits)) == 3
    book.edit(Set("a", 2))
    assert cut(book, limits) == [[1]]


def test_constants_that_do_not_fit_into_one_packet_are_spread() -> None:
    text = "x" * 100_000
    book = Book(
        [update for at in range(20) for update in (Set(f"t{at}", text), Derive(f"n{at}", "length", {"t": f"t{at}"}))]
    )
    [wave] = cut(book, Thresholds(packet_bytes=500_000))
    assert wave == [4, 4, 4, 4, 4]


@pytest.mark.parametrize("interpreted_max", [300, -1])
def test_what_an_earlier_wave_found_counts_in_the_packets_of_a_later_one(interpreted_max: int) -> None:
    count, text, room = 20, "x" * 50_000, 500_000
    book = Book(
        [
            *(Set(f"t{at}", text) for at in range(count)),
            *(Derive(f"n{at}", "concat", {"t": (f"t{at}", f"t{at}")}) for at in range(count)),
            *(Derive(f"m{at}", "concat", {"n": (f"n{at}", f"n{(at + 7) % count}")}) for at in range(count)),
            *(Derive(f"o{at}", "length", {"m": f"m{at}"}) for at in range(count)),
        ]
    )
    sizes: list[list[int]] = []
    with book.state.view() as view:
        made = plan(view, Thresholds(packet_bytes=room, interpreted_max=interpreted_max))
        while packets := made.next_wave():
            sizes.append([len(packet) for packet in packets])
            made.absorb([result for packet in packets for result in evaluate_packet(packet)])
        book.commit(made.computed(), view.sequence)
    assert len(sizes) > 1
    assert max(max(wave) for wave in sizes) < room + 10_000
    assert [book.values()[f"o{at}"].value for at in range(count)] == [4 * len(text)] * count


@pytest.mark.parametrize("interpreted_max", [300, -1])
def test_inputs_of_what_is_put_off_count_again_for_the_next(interpreted_max: int) -> None:
    """`late{n}` waits for `x`, which is in another packet, and uses the text that the packet of `now{n}` has."""
    count, room = 20, 500_000
    book = Book(
        [Set("u", "u" * 400_000), Set("v", "v" * 300_000), *(Set(f"t{at}", "x" * 50_000) for at in range(count))]
    )
    book.edit(Derive("x", "length", {"u": "u"}), Derive("y", "length", {"v": "v"}))
    for at in range(count):
        book.edit(
            Derive(f"late{at}", "list", {"t": (f"t{at}", "x")}), Derive(f"now{at}", "list", {"t": (f"t{at}", "y")})
        )
    book.edit(total("all", "x", "y"))  # puts both into one island
    sizes: list[int] = []
    with book.state.view() as view:
        made = plan(view, Thresholds(packet_bytes=room, interpreted_max=interpreted_max))
        while packets := made.next_wave():
            sizes += [len(packet) for packet in packets]
            made.absorb([result for packet in packets for result in evaluate_packet(packet)])
        book.commit(made.computed(), view.sequence)
    assert max(sizes) < room + 10_000
    assert [len(book.values()[f"late{at}"].value) for at in range(count)] == [2] * count  # type: ignore[arg-type]


def test_one_value_with_more_inputs_than_a_packet_goes_alone() -> None:
    book = Book([*(Set(f"v{at}", at) for at in range(1000)), total("all", *(f"v{at}" for at in range(1000)))])
    assert cut(book, Thresholds(packet_bytes=100)) == [[1]]
    assert book.values()["all"].value == 499_500


@pytest.mark.parametrize("seed", range(5))
def test_a_random_graph_cut_small_is_what_it_is_whole(seed: int) -> None:
    """Many islands are in packets into which some do not fit. An island that is taken out again leaves no trace."""
    dice = random.Random(seed)
    updates: list[Update] = []
    for at in range(400):
        base = at - at % 20
        inputs = [f"v{dice.randrange(base, at)}" for _ in range(3)] if at % 20 > 3 else []
        updates.append(total(f"v{at}", *inputs) if inputs else Set(f"v{at}", dice.choice([at, at / 7, "text" * at])))
    whole, small = Book(updates), Book(updates)
    whole.update()
    small.update(Thresholds(packet_bytes=dice.choice([700, 1500, 4000]), parallelism=1, task_min_elements=10))
    assert small.values() == whole.values()


def test_a_packet_is_full_of_definitions_and_of_inputs_too() -> None:
    """Each definition is in a packet once, and each use of an input takes a few bytes."""
    texts = [Derive(f"d{at}", "join", {"values": ("a", "a")}, {"separator": f"{at}" * 1000}) for at in range(8)]
    alike = [Derive(f"e{at}", "join", {"values": ("a", "a")}, {"separator": "-" * 1000}) for at in range(8)]
    many = [Derive(f"f{at}", "count", {"values": ["a"] * 1000}) for at in range(8)]
    limits = Thresholds(packet_bytes=4500, task_min_elements=1 << 40)
    for updates, packets in ((texts, [5, 3]), (alike, [8]), (many, [1] * 8)):
        [wave] = cut(Book([Set("a", "x"), *updates]), limits)
        assert wave == packets


def test_what_an_edit_has_touched_since_is_no_longer_valid() -> None:
    book = Book([Set("a", 1), *(total(id_, "a") for id_ in "bcdef")])
    with book.state.view() as view:
        computed = run_here(view)
        book.edit(Set("b", 7), Derive("c", "count", {"values": "a"}), Remove("d"), Unset("e"))
        valid = still_valid(book.state, computed, view.sequence)  # type: ignore[arg-type]
    assert valid == (Computed("f", 1),)


def test_islands_keep_their_order_and_cycle_members_join_nothing() -> None:
    ring = [total("x", "y"), total("y", "x"), total("p", "x"), total("q", "y"), total("r", "y")]
    book = Book([*islands(2, 3), *ring])
    with book.state.view() as view:
        found = subgraph.build_subgraph(view, Thresholds())
        parts, begin = subgraph.islands(found, found.order, 300)
        named = [[view.columns.ids[found.rows[at]] for at in part] for part in np.split(parts, begin[1:-1])]
    assert sorted(named) == [["0/1", "0/2", "0/3"], ["1/1", "1/2", "1/3"], ["p"], ["q"], ["r"]]
