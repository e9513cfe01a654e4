"""Callbacks of ticks are called at every n-th tick, spread over the ticks."""

from collections import Counter

import pytest

from rebaser_client.nats.hooks import Ticks


def test_a_callback_is_called_at_every_nth_tick_from_when_it_was_added() -> None:
    ticks, calls = Ticks(), list[int]()
    seen = []
    for _ in range(2):
        ticks.tick()
    ticks.add(lambda: calls.append(1), 3)
    for _ in range(7):
        ticks.tick()
        seen.append(len(calls))
    assert seen == [0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("every", [1, 4])
def test_callbacks_are_spread_over_the_ticks_and_can_be_removed(every: int) -> None:
    ticks, calls = Ticks(), Counter[int]()
    removes = []
    for number in range(every):
        removes.append(ticks.add(lambda number=number: calls.update([number]), every))  # type: ignore[misc]
        ticks.tick()
    before = calls.total()
    ticks.tick()
    assert calls.total() == before + 1, "one of them is due at each tick"
    for _ in range(every - 1):
        ticks.tick()
    assert len(ticks) == every == len(list(ticks))
    for remove in removes:
        remove()
        remove()
    assert len(ticks) == 0
    before = calls.total()
    for _ in range(every):
        ticks.tick()
    assert calls.total() == before


def test_a_callback_may_remove_itself_and_add_others() -> None:
    ticks, called = Ticks(), list[str]()

    def replace() -> None:
        called.append("first")
        remove()
        ticks.add(lambda: called.append("second"), 2)

    remove = ticks.add(replace, 1)
    for _ in range(3):
        ticks.tick()
    assert called == ["first", "second"]
