"""Tests how many change sets fit into the memory, and which owners yield when all slots are taken."""

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from rebaser import crowd
from rebaser.change_set.lifecycle import OwnerState, Phase, Reason
from rebaser.change_set.owner import Owner
from rebaser.runtime.slots import MAX_SLOTS, MIN_SLOTS, OWNER_BYTES, SHARE, SlotCount, memory_limit
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Set

GIB = 1024**3


def test_a_fixed_number_is_not_changed_by_memory() -> None:
    slots = SlotCount(3, 0)
    slots.state_bytes = GIB
    assert slots.total(without_slot=100) == 3


def test_two_gibibytes_hold_ten_thousand_small_change_sets() -> None:
    assert SlotCount(None, 2 * GIB).total(without_slot=0) >= 10_000


def test_owners_and_their_states_take_slots_from_the_others() -> None:
    slots = SlotCount(None, SHARE * OWNER_BYTES * 1000)
    assert slots.total(without_slot=0) == 1000
    assert slots.total(without_slot=100) == 900
    slots.state_bytes = 500 * OWNER_BYTES
    assert slots.total(without_slot=100) == 400


def test_there_are_always_some_slots_and_never_too_many() -> None:
    slots = SlotCount(None, GIB)
    slots.state_bytes = 100 * GIB
    assert slots.total(without_slot=5) == MIN_SLOTS
    assert SlotCount(None, 10_000 * GIB).total(without_slot=0) == MAX_SLOTS


def test_the_memory_of_a_state_grows_with_its_values() -> None:
    state = ChangeSetState()
    assert state.memory == 0
    updates = tuple(Set(f"v{number}", number) for number in range(1000))
    state.fold(1, Commit("01", 0, Kind.REBASE, 0, "test", None, None, delta=updates))
    assert 100_000 < state.memory < 1_000_000


# -- the memory of the container ----------------------------------------------------------------------------------


def cgroup(root: Path, lines: str, **limits: str) -> Path:
    """Make a file system in which this process is in the groups `lines`. `limits` has the contents of files by path,
    with `/` written as `__`."""
    files = {"proc/self/cgroup": lines, **{name.replace("__", "/"): text for name, text in limits.items()}}
    for name, text in files.items():
        path = root / name.replace("max", "memory.max").replace("bytes", "memory.limit_in_bytes")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        ("0::/\n", {"sys__fs__cgroup__max": "1048576\n"}),
        ("0::/a/b\n", {"sys__fs__cgroup__a__b__max": "max\n", "sys__fs__cgroup__a__max": "1048576\n"}),
        ("0::/a/b\n", {"sys__fs__cgroup__a__b__max": "2097152\n", "sys__fs__cgroup__a__max": "1048576\n"}),
        ("0::/a/b\n", {"sys__fs__cgroup__a__b__max": "1048576\n", "sys__fs__cgroup__a__max": "2097152\n"}),
        ("0::/../not/here\n", {"sys__fs__cgroup__max": "1048576\n"}),
        ("4:cpu:/x\n3:memory:/a\n0::/\n", {"sys__fs__cgroup__memory__a__bytes": "1048576\n"}),
        ("3:memory:/of/the/host\n", {"sys__fs__cgroup__memory__bytes": "1048576\n"}),
    ],
)
def test_the_limit_of_a_container_is_found(tmp_path: Path, lines: str, limits: dict[str, str]) -> None:
    assert memory_limit(cgroup(tmp_path, lines, **limits)) == 1048576


@pytest.mark.parametrize(
    ("lines", "limits"),
    [
        ("", {}),
        ("broken\n0::/\n", {"sys__fs__cgroup__max": "max\n"}),
        ("3:memory:/\n", {"sys__fs__cgroup__memory__bytes": f"{2**63 - 4096}\n"}),
    ],
)
def test_without_a_limit_it_is_the_memory_of_the_machine(tmp_path: Path, lines: str, limits: dict[str, str]) -> None:
    assert memory_limit(cgroup(tmp_path, lines, **limits)) == memory_limit(tmp_path / "nothing") > 2**26


# -- who yields ---------------------------------------------------------------------------------------------------


def owner(active_at: float, since: float = 0.0, **state: object) -> Owner:
    made = SimpleNamespace(
        lifecycle=OwnerState(**{"phase": Phase.ACTIVE, "busy": False, "active_at": active_at} | state),  # type: ignore[arg-type]
        since=since,
    )
    made.idle_for = lambda now: Owner.idle_for(made, now)  # type: ignore[arg-type]
    return cast("Owner", made)


def owners(*some: Owner) -> OrderedDict[ChangeSetKey, Owner]:
    return OrderedDict((ChangeSetKey("ws", f"cs{number}"), one) for number, one in enumerate(some))


def test_the_owner_that_is_idle_for_longest_is_found() -> None:
    some = owners(owner(5.0), owner(3.0), owner(4.0))
    found = crowd.find_idle(some, 10.0)
    assert found is not None
    assert found.lifecycle.active_at == 3.0


def test_no_owner_with_work_is_found() -> None:
    busy = [
        owner(0.0, busy=True),
        owner(0.0, queued=True),
        owner(9.9),
        owner(0.0, phase=Phase.RELEASING),
        owner(0.0, phase=Phase.SETTLING, stopping=Reason.YIELD, jobs=1),
    ]
    assert crowd.find_idle(owners(*busy), 10.0) is None
    assert crowd.find_idle(owners(), 10.0) is None


def test_a_search_looks_at_a_sample_and_the_next_one_goes_on_behind_it() -> None:
    some = owners(*[owner(5.0) for _ in range(crowd.SAMPLE)], owner(1.0))
    first, second = crowd.find_idle(some, 10.0), crowd.find_idle(some, 10.0)
    assert first is not None
    assert second is not None
    assert (first.lifecycle.active_at, second.lifecycle.active_at) == (5.0, 1.0)


def test_a_search_among_busy_owners_goes_on_until_one_is_idle() -> None:
    some = owners(*[owner(0.0, busy=True) for _ in range(crowd.SAMPLE * 3)], owner(1.0))
    assert crowd.find_idle(some, 10.0) is not None


def test_idle_owners_yield_first_and_busy_ones_only_after_their_turn() -> None:
    named = {
        "idle": owner(5.0),
        "idle for longer": owner(3.0),
        "overdue": owner(9.0, since=2.0, busy=True),
        "overdue for longer": owner(9.0, since=1.0, queued=True),
        "busy": owner(9.0, since=6.0, busy=True),
        "about to begin": owner(9.9, since=9.9),
    }
    chosen = crowd.yielding(list(named.values()), 10.0, turn=5.0)
    assert [name for one in chosen for name, made in named.items() if made is one] == [
        *("idle for longer", "idle", "overdue for longer", "overdue")
    ]
