"""Runs one dependent values update, from a view of the state to the values that changed.

Invariant: the event loop is never blocked for long. A small update is planned on the event loop, and its results are
read there, because switching threads would take longer than the work. For a larger update, a thread plans and reads.
Spark computes the values, unless there are none to compute. A caller that cancels an update does not wait for the
thread, because the thread only reads the view.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from anyio import to_thread

from rebaser.dvu import fingerprint
from rebaser.dvu.functions.registry import installed
from rebaser.dvu.planning import subgraph
from rebaser.dvu.planning.full_plan import FullGraphPlan
from rebaser.dvu.planning.packet_plan import PacketPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.wire.packet import Encoded
from rebaser.dvu.wire.structure import Structure
from rebaser.telemetry.feeds import StageClock
from rebaser_client.cooperative import cooperate
from rebaser_core import thresholds
from rebaser_core.state.change_set import ChangeSetState, View
from rebaser_core.state.columns import Columns
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.thresholds import NEVER, Thresholds

T = TypeVar("T")
Entered: TypeAlias = Callable[[str, str, int], None]
"""A function that is called when a stage of an update begins: with `plan`, `spark` or `absorb`; the kind of the plan,
`packets` or `full graph`, empty until it is known; and the number of the wave, from 1, or 0 before the first one."""

# Each change set has a lock, because the thread of a cancelled update may still be refreshing the indexes.
_refreshing: Final["WeakKeyDictionary[Columns, Lock]"] = WeakKeyDictionary()


class PacketEngine(Protocol):
    """An engine that computes packets: `rebaser.dvu.spark.engine.Engine`, or a replacement in tests."""

    async def evaluate(
        self,
        packets: Sequence[bytes],
        *,
        label: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the engine interrupts a late job, and may repeat its calls
        arrived: Callable[[int, int], None] | None = None,
    ) -> Sequence[Sequence[Encoded]]:
        """Return the results of each packet, in the order of the packets. Raise `DvuError` if computing them fails.

        If the results arrive one after another, `arrived` is called repeatedly. Its arguments are the number of packets
        whose results have arrived, and the number of nodes that workers have visited so far in the other packets (0 if
        unknown).
        """
        ...

    async def share(self, structure: Structure) -> str | None:
        """Store a structure in a place from which workers can read it.

        Return the URL of the blob store that contains it, or an empty text if workers find it without a URL. Return
        None if there is no such place: the structure then has to be sent with its packet.
        """
        ...


async def update(
    view: View,
    engine: PacketEngine,
    *,
    label: str,
    progress: Callable[[int, int], None] = lambda _, __: None,
    entered: Entered = lambda _, __, ___: None,
) -> ComputedTable:
    """Compute all derived values of `view` that are not up to date. Return the values that changed.

    The caller must keep `view` open during the call. Meanwhile, commits may be folded into the change set. `label` is
    the name of the update in log events. Spark is not used if no function has to be called: if no value is affected, or
    if all affected values are members of cycles. `progress` is called with the number of values that are done and the
    number of values to compute. Raise `DvuError` if the update fails.
    """
    small, stages, stage, waves = _is_small(view), StageClock(), "plan", 0
    made, wave = await _run(view, small, _start, view)
    parts: Sequence[Encoded] = ()
    while True:
        if wave is None:
            if await share_structure(made, engine):
                wave = await _run(view, small, _next_wave, made)
            else:
                packets_only = replace(thresholds.now, full_plan_min_values=NEVER)
                made, wave = await _run(view, small, _start, view, packets_only)
            assert wave is not None  # noqa: S101 - the structure is shared, or there is none
        stages.ended(stage, max(waves, 1), parts or wave.packets)
        if wave.computed is not None:
            return wave.computed
        arrived = partial(_report, progress, made.done_after, made.size)
        arrived(0, 0)
        waves += 1
        kind = "packets" if isinstance(made, PacketPlan) else "full graph"
        entered("spark", kind, waves)
        of_packets = await engine.evaluate(wave.packets, label=label, arrived=arrived)
        stages.ended("spark", waves, wave.packets)
        entered("absorb", kind, waves)
        parts = results = [part for of_packet in of_packets for part in of_packet]
        small = small and sum(map(len, results)) <= thresholds.now.results_on_loop_max_bytes
        wave, stage = await _run(view, small, _absorb, made, results), "absorb"


class _Wave(NamedTuple):
    """The packets of one wave. If there are no packets, the update is done, and `computed` is its result."""

    packets: list[bytes]
    computed: ComputedTable | None


def _start(view: View, limits: Thresholds | None = None) -> tuple[PacketPlan | FullGraphPlan, _Wave | None]:
    """Plan the update. Return the plan and its first wave.

    For a `FullGraphPlan`, the wave is None: the caller has to share the structure with the workers before it takes the
    wave from the plan.
    """
    with _refreshing.setdefault(view.columns, Lock()):
        subgraph.refresh_indexes(view.columns)
    made = plan(view, limits)
    return made, _next_wave(made) if isinstance(made, PacketPlan) else None


def _absorb(made: PacketPlan | FullGraphPlan, results: Sequence[Encoded]) -> _Wave | None:
    """Pass the results of the last wave to the plan. Return the next wave; None for a `FullGraphPlan` (see
    `_start`)."""
    made.absorb(results)
    return _next_wave(made) if isinstance(made, PacketPlan) else None


def _next_wave(made: PacketPlan | FullGraphPlan) -> _Wave:
    packets = made.next_wave()
    return _Wave(packets, None if packets else made.computed())


async def share_structure(made: PacketPlan | FullGraphPlan, engine: PacketEngine) -> bool:
    """Store the structure of a plan where workers can read it, if they may not have it yet.

    Return whether the plan can be carried out. It cannot be if there is no place from which workers can read, and the
    structure is too large to be sent with its packet. The caller then has to use a `PacketPlan` instead.
    """
    if not isinstance(made, FullGraphPlan):
        return True
    if made.unsent_structure is not None and (store := await engine.share(made.unsent_structure)) is not None:
        made.mark_shared(store)
    return not made.structure_too_large


def _report(
    progress: Callable[[int, int], None], done_after: Sequence[int], size: int, packets: int, more: int
) -> None:
    """Call `progress` with the number of values that are done and the number of values to compute.

    The values of the first `packets` packets are done, and `more` values of the other packets. `size` is the number of
    values to compute; for `done_after`, see `PacketPlan`.
    """
    progress(min(done_after[packets] + more, done_after[-1]), size)


def _is_small(view: View) -> bool:
    columns, limits = view.columns, thresholds.now
    return (
        columns.count + columns.refs_used - columns.dead_refs <= limits.plan_on_loop_max_elements
        and all(
            type(value) is str and len(value) <= limits.plan_on_loop_max_text_chars for value in columns.other.values()
        )
        and installed.cache_info().currsize + fingerprint.code.cache_info().currsize == 2  # both are in their caches
    )


async def _run(view: View, on_loop: bool, function: Callable[..., T], *args: Any) -> T:
    """Run `function`, which may read `view`: on the event loop if `on_loop` is true, in a thread otherwise."""
    if on_loop:
        await cooperate()
        return view.run(function, *args)
    return await to_thread.run_sync(view.run, function, *args, abandon_on_cancel=True)


def still_valid(state: ChangeSetState, computed: ComputedTable, planned_at: int) -> ComputedTable:
    """Return the part of an update planned at log sequence `planned_at` that may still be committed to `state`.

    The results of values that an edit has set, derived, unset or removed after `planned_at` are dropped. Such a value
    is a root of the next update, which computes all values that depend on it. Results of values that the edit only made
    stale are kept: the next update starts from them. Call this while the view of the plan is open; later, a row may
    belong to another id or to none.
    """
    if state.last == planned_at:
        return computed
    touched = {id_ for id_, sequence in state.roots.items() if sequence > planned_at}
    if not touched:
        return computed
    return computed.filter(np.array([id_ not in touched for id_ in computed.ids], np.bool_))
