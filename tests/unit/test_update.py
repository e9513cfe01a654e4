"""Tests where an update does its work: a small update on the event loop, a larger one in threads."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread

from rebaser.dvu.planning import subgraph
from rebaser.dvu.update import _start, update
from rebaser.dvu.wire.packet import Packet, read_packet
from rebaser.dvu.wire.structure import Structure, StructurePacket, decode
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser_core import thresholds
from rebaser_core.state.columns import Columns
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Set, Update
from tests.support.graphs import Book, expected

pytestmark = pytest.mark.anyio

DEFAULT = Thresholds()


class Here:
    async def share(self, _: object) -> str | None:
        return None

    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        return [evaluate_packet(packet) for packet in packets]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that ran in threads."""
    done: list[str] = []
    in_thread = to_thread.run_sync

    async def run_sync(run: Callable[..., Any], function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        done.append(function.__name__)
        return await in_thread(run, function, *args, **options)

    monkeypatch.setattr(to_thread, "run_sync", run_sync)
    return done


async def updated(updates: list[Update]) -> None:
    book = Book(updates)
    with book.state.view() as view:
        book.commit(await update(view, Here(), label="test"), view.sequence)
    assert book.values() == expected(book.state.updates())


def joined(count: int, text: str = "x", times: int = 1) -> list[Update]:
    return [Set("a", text), *(Derive(f"b{at}", "concat", {"x": ("a",) * times}) for at in range(count))]


async def test_little_work_takes_no_thread(threads: list[str]) -> None:
    await updated(joined(1))  # the first update loads what planning needs
    threads.clear()
    await updated(joined(10))
    assert threads == []


@pytest.mark.parametrize(
    "updates",
    [
        joined(DEFAULT.plan_on_loop_max_elements),
        joined(1, times=DEFAULT.plan_on_loop_max_elements),
        joined(1, "x" * (DEFAULT.plan_on_loop_max_text_chars + 1)),
        [Set("l", []), *joined(1)],
    ],
    ids=["values", "edges", "text", "structured"],
)
async def test_all_other_does(threads: list[str], updates: list[Update]) -> None:
    await updated(updates)
    assert {"_start", "_absorb"} <= set(threads)


async def test_who_cancels_does_not_wait_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, ended = anyio.Event(), Event(), Event()

    def plan(*_: object) -> None:
        from_thread.run_sync(begun.set)
        go_on.wait(60)
        ended.set()

    monkeypatch.setattr("rebaser.dvu.update.plan", plan)
    book = Book(joined(1))
    with forced(replace(DEFAULT, plan_on_loop_max_elements=0)), book.state.view() as view:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(update, view, Here(), label="test"))
            await begun.wait()
            group.cancel_scope.cancel()
        waited = ended.is_set()
        go_on.set()
    assert not waited


async def test_two_threads_never_bring_the_same_indexes_up_to_date_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a cancelled update continues beside that of the next one."""
    both, met, refresh = Barrier(2), list[int](), subgraph.refresh_indexes

    def meet(columns: Columns) -> None:
        with suppress(BrokenBarrierError):
            met.append(both.wait(0.3))
        refresh(columns)

    book = Book(joined(1))
    with book.state.view() as view:
        monkeypatch.setattr(subgraph, "refresh_indexes", meet)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(to_thread.run_sync, view.run, _start, view)
    assert met == []


async def test_large_results_are_read_in_a_thread(threads: list[str]) -> None:
    await updated(joined(1))
    threads.clear()
    count = DEFAULT.results_on_loop_max_bytes // (100 * DEFAULT.plan_on_loop_max_text_chars) + 2
    await updated(joined(count, "x" * DEFAULT.plan_on_loop_max_text_chars, times=100))
    assert threads == ["_absorb"]


async def test_no_more_is_said_to_be_done_than_there_is() -> None:
    """If Spark computes a packet twice, its nodes are counted twice."""

    class Twice(Here):
        async def evaluate(self, packets: Sequence[bytes], **options: Any) -> list[list[bytes]]:
            options["arrived"](0, 10)
            return await super().evaluate(packets)

    told: list[tuple[int, int]] = []
    with Book(joined(5)).state.view() as view:
        await update(view, Twice(), label="test", progress=lambda done, of: told.append((done, of)))
    assert told == [(0, 5), (5, 5)]


class Keeps(Here):
    """An engine whose workers have a folder of their own. Structures that are shared arrive there if `reached`."""

    def __init__(self, *, store: str | None, reached: bool = True) -> None:
        self.kept = StructureCache(None)
        self.store, self.reached = store, reached
        self.shared = 0
        self.kinds: list[type] = []

    async def share(self, structure: Structure) -> str | None:  # type: ignore[override]
        self.shared += 1
        if self.store is not None and self.reached:
            self.kept.put(structure.address, bytes(structure.data))
        return self.store

    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        self.kinds += [type(decode(*read_packet(packet))) for packet in packets]
        return [evaluate_packet(packet, structures=self.kept) for packet in packets]


async def swept(monkeypatch: pytest.MonkeyPatch, engine: Keeps, lost: bool = False) -> None:
    """Run two updates with a full plan; with `lost`, the workers lose their structures in between."""
    monkeypatch.setattr(
        thresholds, "now", replace(thresholds.now, full_plan_min_values=0, full_plan_reach_divisor=1 << 30)
    )
    book = Book([Set("a", 1), *(Derive(f"b{at}", "sum", {"x": "a"}) for at in range(5))])
    for value in (2, 3):
        book.edit(Set("a", value))
        with book.state.view() as view:
            book.commit(await update(view, engine, label="test"), view.sequence)
        assert book.values() == expected(book.state.updates())
        if lost:
            engine.kept = StructureCache(None)


async def test_a_structure_is_shared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Keeps(store="")
    await swept(monkeypatch, engine)
    assert (engine.shared, engine.kinds) == (1, [StructurePacket, StructurePacket])


async def test_a_structure_that_workers_lost_is_shared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Keeps(store="")
    await swept(monkeypatch, engine, lost=True)
    assert (engine.shared, engine.kinds) == (2, [StructurePacket, StructurePacket, StructurePacket])


async def test_a_store_that_workers_do_not_reach_costs_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Keeps(store="file:///nowhere/at/all", reached=False)
    await swept(monkeypatch, engine)
    assert (engine.shared, engine.kinds) == (1, [StructurePacket, StructurePacket, StructurePacket])


async def test_without_a_store_it_goes_with_the_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Keeps(store=None)
    await swept(monkeypatch, engine)
    assert (engine.shared, engine.kinds) == (1, [StructurePacket, StructurePacket])


async def test_what_is_too_large_for_that_is_cut_into_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "now", Thresholds(structure_in_packet_max_bytes=0))
    engine = Keeps(store=None)
    await swept(monkeypatch, engine)
    assert engine.kinds == [Packet, Packet]
