"""Tests which owners yield if tasks wait and all slots are taken."""

from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser import crowd
from rebaser.crowd import IDLE_AFTER, SAMPLE, find_idle, is_idle, yielding
from rebaser_core.ids import ChangeSetKey

NOW = 1000.0


@dataclass
class Owner:
    """An owner that last worked at `active_at`, or is working now."""

    active_at: float
    busy: bool = False
    since: float = 0.0
    holds_slot: bool = True
    stopping: object = None
    lifecycle: Any = field(init=False)

    def __post_init__(self) -> None:
        self.lifecycle = SimpleNamespace(active_at=self.active_at, holds_slot=self.holds_slot, stopping=self.stopping)

    def idle_for(self, now: float) -> float:
        return 0.0 if self.busy else now - self.active_at


def owned(*owners: Owner) -> OrderedDict[ChangeSetKey, Any]:
    return OrderedDict((ChangeSetKey("ws", f"cs{number}"), owner) for number, owner in enumerate(owners))


@pytest.mark.parametrize(
    ("owner", "idle"),
    [
        (Owner(NOW - 10), True),
        (Owner(NOW - IDLE_AFTER), False),  # its first request may still be on its way
        (Owner(NOW - IDLE_AFTER - 0.01), True),
        (Owner(NOW - 10, busy=True), False),
        (Owner(NOW - 10, holds_slot=False), False),
        (Owner(NOW - 10, stopping="yield"), False),
    ],
)
def test_an_owner_is_idle_if_it_holds_a_slot_for_nothing(owner: Owner, idle: bool) -> None:
    assert is_idle(cast("Any", owner), NOW) is idle


def test_the_one_that_was_idle_for_the_longest_time_is_found() -> None:
    owners = owned(Owner(NOW - 3), Owner(NOW - 9), Owner(NOW - 20, busy=True), Owner(NOW - 5))
    assert find_idle(owners, NOW) is owners[ChangeSetKey("ws", "cs1")]
    assert find_idle(owned(Owner(NOW), Owner(NOW - 20, busy=True)), NOW) is None
    assert find_idle(owned(), NOW) is None


def test_each_search_goes_on_where_the_last_one_ended() -> None:
    """Otherwise, the owners behind the sample would never yield."""
    owners = owned(*(Owner(NOW - 3) for _ in range(SAMPLE)), Owner(NOW - 9))
    assert find_idle(owners, NOW) is not owners[ChangeSetKey("ws", f"cs{SAMPLE}")]
    assert find_idle(owners, NOW) is owners[ChangeSetKey("ws", f"cs{SAMPLE}")]


def test_a_search_goes_further_while_all_are_busy_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [Owner(NOW - 3, busy=True) for _ in range(SAMPLE + 5)]
    owners = owned(*busy, Owner(NOW - 9))
    monkeypatch.setattr(crowd, "MAX_SEARCH", SAMPLE + 5)
    assert find_idle(owners, NOW) is None
    assert find_idle(owners, NOW) is owners[ChangeSetKey("ws", f"cs{SAMPLE + 5}")]


def test_idle_ones_yield_before_those_whose_turn_is_over() -> None:
    long_idle, idle = Owner(NOW - 9), Owner(NOW - 3)
    first, second = (Owner(NOW, busy=True, since=NOW - ago) for ago in (31, 30.1))
    in_time = Owner(NOW, busy=True, since=NOW - 30)
    gone = Owner(NOW - 9, stopping="yield", since=NOW)
    holders = cast("Any", [second, idle, in_time, first, long_idle, gone])
    assert yielding(holders, NOW, 30.0) == cast("Any", [long_idle, idle, first, second])
