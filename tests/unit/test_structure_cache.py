"""The structures that a worker caches: the last used stay, and those for which the folder has no room are removed."""

import os
from pathlib import Path

import numpy as np

from rebaser.dvu.wire.structure import Structure
from rebaser.dvu.worker.structure_cache import StructureCache
from rebaser_core.state.templates import DefinitionTemplate


def a_structure(base: int) -> Structure:
    one = np.zeros(1, np.int32)
    return Structure.make(base, [DefinitionTemplate("sum", (("x", -1),), {})], one, one)


def test_a_full_folder_loses_what_was_used_for_longest(tmp_path: Path) -> None:
    first, second, third = map(a_structure, (1, 2, 3))
    kept = StructureCache(tmp_path, len(first.data) + len(third.data))
    for at, one in enumerate((first, second)):
        kept.put(one.address, bytes(one.data))
        os.utime(tmp_path / one.address, (at, at))
    assert StructureCache(tmp_path).get(first.address) is not None  # from another worker
    kept.put(third.address, bytes(third.data))
    assert {path.name for path in tmp_path.iterdir()} == {first.address, third.address}
    there = StructureCache(tmp_path)
    assert [there.get(one.address) is not None for one in (first, second, third)] == [True, False, True]


def test_memory_keeps_what_was_used_last() -> None:
    """Without a folder, a structure that is dropped at once would have to be sent with each update."""
    structures = [a_structure(number) for number in range(1, 7)]
    cache = StructureCache(None)
    for one in structures[:4]:
        cache.put(one.address, bytes(one.data))
    assert cache.get(structures[0].address) is not None
    for one in structures[4:]:
        cache.put(one.address, bytes(one.data))
    assert [cache.get(one.address) is not None for one in structures] == [True, False, False, True, True, True]
