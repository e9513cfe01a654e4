"""The turns in which quiet change sets write checkpoints: few at once, in order, and none is forgotten."""

from functools import partial

from rebaser.runtime.quiet_checkpoints import MAX_WRITERS, PAUSE, QuietCheckpoints
from rebaser_core.ids import ChangeSetKey

KEYS = [ChangeSetKey("ws", f"cs{number}") for number in range(MAX_WRITERS + 3)]


def full() -> tuple[QuietCheckpoints, list[ChangeSetKey]]:
    """Return turns that all of `KEYS` have tried to enter, and the list of those that are woken."""
    turns, woken = QuietCheckpoints(), list[ChangeSetKey]()
    admitted = [turns.enter(key, partial(woken.append, key)) for key in KEYS]
    assert admitted == [number < MAX_WRITERS for number in range(len(KEYS))]
    return turns, woken


def test_those_that_wait_are_woken_one_by_one_in_their_order() -> None:
    turns, woken = full()
    turns.leave(KEYS[1])
    assert woken == [KEYS[MAX_WRITERS]]
    assert turns.enter(KEYS[MAX_WRITERS], lambda: None)
    assert not turns.enter(KEYS[-1], lambda: None)
    turns.leave(KEYS[0])
    assert woken == KEYS[MAX_WRITERS : MAX_WRITERS + 2]


def test_who_does_not_use_its_turn_passes_it_on() -> None:
    turns, woken = full()
    turns.leave(KEYS[0])
    turns.leave(KEYS[MAX_WRITERS])
    assert woken == KEYS[MAX_WRITERS : MAX_WRITERS + 2]


def test_who_ends_while_it_waits_is_not_woken() -> None:
    turns, woken = full()
    turns.leave(KEYS[MAX_WRITERS])
    assert not woken
    turns.leave(KEYS[0])
    assert woken == [KEYS[MAX_WRITERS + 1]]


def test_after_a_failure_nobody_waits_for_a_while() -> None:
    turns, woken = full()
    turns.pause(100.0)
    assert woken == KEYS[MAX_WRITERS:]
    assert turns.is_paused(100.0 + PAUSE - 1)
    assert not turns.is_paused(100.0 + PAUSE)
