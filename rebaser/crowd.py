"""Chooses the owners that yield when tasks wait and all slots of the server are taken.

Invariant: only an owner that is idle, or whose turn is over, is asked to yield.
"""

from collections import OrderedDict
from collections.abc import Sequence

from rebaser.change_set.owner import Owner
from rebaser_core.ids import ChangeSetKey

IDLE_AFTER = 0.25  # seconds without work after which an owner is idle; this leaves time for its first request
SAMPLE = 32  # owners that one search compares, to find the one that has been idle longest
MAX_SEARCH = 1000  # maximum number of owners that one search examines


def find_idle(owners: OrderedDict[ChangeSetKey, Owner], now: float) -> Owner | None:
    """Return, of the examined owners, the one that has been idle longest; None if none of them is idle.

    Examining all of ten thousand owners would take too long. So a search examines the first `SAMPLE` owners, and
    further ones, up to `MAX_SEARCH`, only while all of these are busy. It moves the examined owners to the end.
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
    """Return the owners that have to yield: first idle ones, then those that have been busy for longer than `turn`.

    `holders` are the owners that hold a slot. `turn` is in seconds.
    """
    idle = [owner for owner in holders if is_idle(owner, now)]
    idle.sort(key=lambda owner: owner.lifecycle.active_at)
    overdue = [owner for owner in holders if not is_idle(owner, now) and now - owner.since > turn]
    overdue.sort(key=lambda owner: owner.since)
    return idle + overdue


def is_idle(owner: Owner, now: float) -> bool:
    """Return whether `owner` holds a slot, is not stopping, and has had no work for `IDLE_AFTER` seconds."""
    return owner.lifecycle.holds_slot and owner.lifecycle.stopping is None and owner.idle_for(now) > IDLE_AFTER
