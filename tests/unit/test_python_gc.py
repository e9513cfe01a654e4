"""Objects that survived two collections are not visited by later ones, and are collected when a full collection is
due."""

import gc
import weakref

from rebaser.runtime.python_gc import COLLECT_WITH_FEW, COLLECT_WITH_MANY, FEW_OWNERS, FrozenGarbage, short_collections


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_old_garbage_is_left_until_enough_owners_have_ended() -> None:
    before = gc.get_threshold()
    with short_collections():
        cycle = Cycle()
        gone = weakref.ref(cycle)
        gc.collect(1)
        frozen = gc.get_freeze_count()
        assert frozen > 0
        del cycle
        gc.collect()
        assert gone() is not None
        garbage = FrozenGarbage()
        garbage.owners_ended = COLLECT_WITH_FEW - 1
        garbage.collect_if_due(0)
        assert gone() is not None
        garbage.owners_ended += 1
        garbage.collect_if_due(FEW_OWNERS + 1)
        assert gone() is not None
        garbage.collect_if_due(FEW_OWNERS)
        assert gone() is None
        assert garbage.owners_ended == 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_with_many_owners_it_takes_more_of_them_to_end() -> None:
    with short_collections():
        garbage = FrozenGarbage()
        garbage.owners_ended = COLLECT_WITH_MANY
        garbage.collect_if_due(10 * FEW_OWNERS)
        assert garbage.owners_ended == 0
