"""Cost curves of the DVU alone: against the values affected in one change set, and against the size of the change set
with the affected part held constant, which ought to be flat.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from rebaser.dvu.run import Evaluator
from tests.benchmarks.dvu.loaded import Loaded, medians

ISLAND = 10  # values that are set in each; 90 depend on them
CONSTANT = 10  # islands


async def curve(engine: Evaluator, size: int, islands: Sequence[int], runs: int, name: str) -> list[dict[str, Any]]:
    """Medians of edits that set all values of so many islands, of a change set of islands."""
    loaded = Loaded("islands", size)
    await loaded.update(engine)
    found = []
    for count in islands:
        which = f"first:{count * ISLAND}"
        if not len(loaded.model.edited(which)):
            continue
        taken = []
        for _ in range(runs + 1):
            loaded.edit(which)
            taken.append(await loaded.update(engine))
        found.append({"part": "curves", "curve": name, "size": size} | medians(taken[1:]))
    return found


def curves(sizes: Sequence[int], runs: int) -> dict[str, Callable[[Evaluator], Awaitable[list[dict[str, Any]]]]]:
    """Cells by name, each what measures it on an engine."""
    largest = max(sizes)
    counts = [10**power for power in range(9) if 10**power * 100 <= largest]
    cells = {f"curves affected {largest}": partial(curve, size=largest, islands=counts, runs=runs, name="affected")}
    for size in sizes:
        cells[f"curves size {size}"] = partial(curve, size=size, islands=[CONSTANT], runs=runs, name="size")
    return cells
