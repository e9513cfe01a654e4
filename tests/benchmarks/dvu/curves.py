"""Cost curves of the DVU alone: against the values affected in one change set, and against the size of the change set
with the affected part held constant, which ought to be flat.
"""

from typing import Any

from rebaser.dvu.update import PacketEngine
from tests.benchmarks.dvu.loaded import Loaded, medians

ISLAND = 10  # values that are set in each; 90 depend on them
CONSTANT = 10  # islands


async def curve(engine: PacketEngine, name: str, size: int, runs: int) -> list[dict[str, Any]]:
    """Medians of edits that set all values of some islands: of ever more of them (`affected`), or always of so many."""
    counts = [10**power for power in range(9) if 10**power * 100 <= size] if name == "affected" else [CONSTANT]
    loaded = Loaded("islands", size)
    await loaded.update(engine)
    found = []
    for count in counts:
        which = f"first:{count * ISLAND}"
        if not len(loaded.model.edited(which)):
            continue
        taken = []
        for _ in range(runs + 1):
            loaded.edit(which)
            taken.append(await loaded.update(engine))
        found.append({"part": "curves", "curve": name, "size": size} | medians(taken[1:]))
    return found
