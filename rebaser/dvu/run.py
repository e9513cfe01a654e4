"""One dependent values update from a view to what changed.

Invariant: the event loop is never held. Planning and reading results happen in a worker thread, which only reads the
view; the computing happens in Spark, and only if there is anything to compute. Who cancels an update does not wait for
its thread: what that one still does changes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from anyio import to_thread

from rebaser.dvu.plan import plan
from rebaser_core.commit import Computed
from rebaser_core.state import ChangeSetState, View


class Evaluator(Protocol):
    """What computes packets: `rebaser.dvu.engine.Engine`, or a stand-in."""

    async def evaluate(
        self,
        packets: Sequence[bytes],
        *,
        label: str,
        timeout: float | None = None,  # noqa: ASYNC109 - a late job is the engine's to end, its callers' work to split
    ) -> list[list[bytes]]:
        """The results of each packet, in the order of the packets. Raises `DvuError`."""
        ...


async def update(view: View, engine: Evaluator, *, label: str) -> tuple[Computed, ...]:
    """All derived values of `view` that are not what they should be, as they should be.

    `view` must stay open meanwhile; commits may be folded beside it. `label` names the work to an operator. Where
    nothing needs a function (nothing affected, cycles only), Spark is not asked. Raises `DvuError`.
    """
    made = await to_thread.run_sync(plan, view, abandon_on_cancel=True)
    while packets := await to_thread.run_sync(made.next_wave, abandon_on_cancel=True):
        found = await engine.evaluate(packets, label=label)
        parts = [part for results in found for part in results]
        await to_thread.run_sync(made.absorb, parts, abandon_on_cancel=True)
    return made.computed()


def still_valid(state: ChangeSetState, computed: Iterable[Computed], planned_at: int) -> tuple[Computed, ...]:
    """What of an update planned at log sequence `planned_at` may still be committed to `state`.

    A value that an edit has touched since (set, derived anew, unset, removed) is dropped: it is a root of the next
    update, which wakes all that depends on it. What else the edit made stale is not: the next update starts from it.
    """
    roots, cells = state.roots, state.cells
    return tuple(
        one
        for one in computed
        if roots.get(one.id, 0) <= planned_at
        and (cell := cells.get(one.id)) is not None
        and cell.definition is not None
    )
