"""Measures cost curves of the update alone: against the number of affected values in one change set, and against the
size of the change set with a constant affected part. The second curve ought to be flat."""

from typing import Any

from rebaser.dvu.update import PacketEngine
from tests.benchmarks.dvu.loaded import Loaded, medians

ISLAND = 10  # values that are set in each island; 90 values depend on them
CONSTANT = 10  # islands


async def curve(engine: PacketEngine, name: str, size: int, runs: int) -> list[dict[str, Any]]:
    """Return medians for edits that set all values of some islands: of a growing number of islands (`affected`), or
    always of the same number."""
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
