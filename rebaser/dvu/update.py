"""One dependent values update from a view to what changed.

Invariant: the event loop is never held for long. Planning and reading results happen in a worker thread, which only
reads the view, unless they are little work: then the switch to it would be most of it, and they wait for their turn of
the loop. The computing happens in Spark, and only if there is anything to compute. Who cancels an update does not wait
for its thread: what that one still does changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from anyio import to_thread

from rebaser.dvu import fingerprint
from rebaser.dvu.functions.registry import registry
from rebaser.dvu.planning import subgraph
from rebaser.dvu.planning.full_plan import FullGraphPlan
from rebaser.dvu.planning.packet_plan import PacketPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.wire.packet import Encoded
from rebaser.dvu.wire.structure import Structure
from rebaser_client.cooperative import cooperate
from rebaser_core import thresholds
from rebaser_core.state.change_set import ChangeSetState, View
from rebaser_core.state.columns import Columns
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.thresholds import NEVER, Thresholds

T = TypeVar("T")

# A thread that nobody waits for any more may still be at it.
_refreshing: Final["WeakKeyDictionary[Columns, Lock]"] = WeakKeyDictionary()


class PacketEngine(Protocol):
    """What computes packets: `rebaser.dvu.spark.engine.Engine`, or a stand-in."""

    async def evaluate(
        self,
        packets: Sequence[bytes],
        *,
        label: str,
        timeout: float | None = None,  # noqa: ASYNC109 - a late job is the engine's to end, its callers' work to split
        arrived: Callable[[int, int], None] | None = None,
    ) -> Sequence[Sequence[Encoded]]:
        """The results of each packet, in the order of the packets. Raises `DvuError`.

        `arrived` is called with how many of the packets have theirs, where they do not come all at once, and how many
        values of the others are computed, where that is known.
        """
        ...

    async def share(self, structure: Structure) -> str | None:
        """Put a structure where workers find it: the blob store they have to ask, empty if they need not be told. None
        if there is no such place, so that it has to go with its packet."""
        ...


async def update(
    view: View, engine: PacketEngine, *, label: str, progress: Callable[[int, int], None] = lambda _, __: None
) -> ComputedTable:
    """All derived values of `view` that are not what they should be, as they should be.

    `view` must stay open meanwhile; commits may be folded beside it. `label` names the work to an operator. Where
    nothing needs a function (nothing affected, cycles only), Spark is not asked. `progress` is called with how many
    values are done, and how many there are to do. Raises `DvuError`.
    """
    little = _is_little(view)
    made, packets, computed = await _work(view, little, _planned, view)
    while True:
        if isinstance(made, FullGraphPlan):
            if await share(made, engine):
                in_packets = replace(thresholds.now, whole=NEVER)
                made, packets, computed = await _work(view, little, _planned, view, in_packets)
            else:
                packets, computed = await _work(view, little, _next, made)
        if not packets:
            assert computed is not None  # noqa: S101 - nothing is left to do
            return computed
        arrived = partial(_tell, progress, made.done_after, made.size)
        arrived(0, 0)
        results = await engine.evaluate(packets, label=label, arrived=arrived)
        found = [part for parts in results for part in parts]
        little = little and sum(map(len, found)) <= thresholds.now.little_result
        if isinstance(made, FullGraphPlan):
            await _work(view, little, made.absorb, found)
        else:
            packets, computed = await _work(view, little, _next, made, found)


def _planned(
    view: View, limits: Thresholds | None = None
) -> tuple[PacketPlan | FullGraphPlan, list[bytes], ComputedTable | None]:
    """A plan, and as `_next`, unless its structure has to be shared before."""
    with _refreshing.setdefault(view.columns, Lock()):
        subgraph.refresh_indexes(view.columns)
    made = plan(view, limits)
    return (made, *(_next(made) if isinstance(made, PacketPlan) else ([], None)))


def _next(
    made: PacketPlan | FullGraphPlan, found: Sequence[Encoded] | None = None
) -> tuple[list[bytes], ComputedTable | None]:
    """The packets of the next wave, once the results of the last are `found`; or, if there are none, what changed."""
    if found is not None:
        made.absorb(found)
    packets = made.next_wave()
    return packets, None if packets else made.computed()


async def share(made: PacketPlan | FullGraphPlan, engine: PacketEngine) -> bool:
    """Have a structure that workers may lack put where they find it, if there is such a place. Whether there is none
    and it is too large to go with a packet, so that the work has to be cut instead."""
    if not isinstance(made, FullGraphPlan):
        return False
    if made.unsent_structure is not None and (store := await engine.share(made.unsent_structure)) is not None:
        made.mark_shared(store)
    return made.structure_too_large


def _tell(progress: Callable[[int, int], None], upto: Sequence[int], size: int, arrived: int, values: int) -> None:
    progress(min(upto[arrived] + values, upto[-1]), size)


def _is_little(view: View) -> bool:
    columns, limits = view.columns, thresholds.now
    return (
        columns.count + columns.refs_used - columns.dead_refs <= limits.little
        and all(type(value) is str and len(value) <= limits.little_text for value in columns.other.values())
        and registry.cache_info().currsize + fingerprint.code.cache_info().currsize == 2  # the first plan loads them
    )


async def _work(view: View, little: bool, function: Callable[..., T], *args: Any) -> T:
    if little:
        await cooperate()
        return view.run(function, *args)
    return await to_thread.run_sync(view.run, function, *args, abandon_on_cancel=True)


def still_valid(state: ChangeSetState, computed: ComputedTable, planned_at: int) -> ComputedTable:
    """What of an update planned at log sequence `planned_at` may still be committed to `state`.

    Call while the view that it was planned on is open: after that, a row may be another id's, or none's.
    A value that an edit has touched since (set, derived anew, unset, removed) is dropped: it is a root of the next
    update, which wakes all that depends on it. What else the edit made stale is not: the next update starts from it.
    """
    if state.last == planned_at:
        return computed
    touched = {id_ for id_, at in state.roots.items() if at > planned_at}
    if not touched:
        return computed
    return computed.filter(np.array([id_ not in touched for id_ in computed.ids], np.bool_))
