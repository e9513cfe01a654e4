"""Chooses which owners give up their slots while all slots of the server are taken and tasks wait.

Invariant: only an owner that is idle, or whose turn is over, is chosen.
"""

from collections import OrderedDict
from collections.abc import Sequence

from rebaser.change_set.owner import Owner
from rebaser_core.ids import ChangeSetKey

IDLE_AFTER = 0.25  # seconds without work after which an owner is idle; the first request of a new owner arrives sooner
SAMPLE = 32  # number of owners among which one search chooses the owner that has been idle longest
MAX_SEARCH = 1000  # maximum number of owners that one search examines


def find_idle(owners: OrderedDict[ChangeSetKey, Owner], now: float) -> Owner | None:
    """Return the owner that has been idle longest among the examined owners; None if none of them is idle.

    Examining all of ten thousand owners would take too long, so this function examines the first `SAMPLE` owners. If
    all of them are busy, it continues until it finds an idle owner or has examined `MAX_SEARCH` owners. It moves the
    examined owners to the end, so that the next search examines others.
    """
    found: Owner | None = None
    for looked in range(min(len(owners), MAX_SEARCH)):
        if found is not None and looked >= SAMPLE:
            break
        key = next(iter(owners))
        owners.move_to_end(key)
        owner = owners[key]
        if is_idle(owner, now) and (found is None or owner.lifecycle.active_at < found.lifecycle.active_at):
            found = owner
    return found


def yielding(holders: Sequence[Owner], now: float, turn: float) -> list[Owner]:
    """Return the owners that may be stopped to free their slots: first the idle owners, the longest idle first, then
    the busy owners that have had a slot for more than `turn` seconds, the longest first.

    `holders` are the owners that hold a slot.
    """
    idle = [owner for owner in holders if is_idle(owner, now)]
    idle.sort(key=lambda owner: owner.lifecycle.active_at)
    overdue = [owner for owner in holders if not is_idle(owner, now) and now - owner.since > turn]
    overdue.sort(key=lambda owner: owner.since)
    return idle + overdue


def is_idle(owner: Owner, now: float) -> bool:
    """Return whether `owner` holds a slot, is not stopping, and has had no work for `IDLE_AFTER` seconds."""
    return owner.lifecycle.holds_slot and owner.lifecycle.stopping is None and owner.idle_for(now) > IDLE_AFTER
