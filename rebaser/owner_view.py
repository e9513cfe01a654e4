"""Describes owners to observers: a single owner for `rebaser explain`, and all owners as a census.

Invariant: this module only reads owners. It counts the owners in each call, and keeps no counts between calls.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from rebaser.change_set.lifecycle import Dvu, Phase
from rebaser.change_set.owner import Owner
from rebaser.runtime.progress import Progress
from rebaser.snapshot import PUT_OFF, Census, SlowUpdate


def describe_owner(owner: Owner, progress: Progress | None, now: float) -> dict[str, object]:
    """Return the state of `owner`, with the field names of `rebaser_core.explain.facts.OwnerFacts`. Times are in
    seconds. `progress` is the progress of its running update, or None."""
    state, log = owner.lifecycle, owner.commits
    deciding = state.phase is Phase.ACTIVE and (state.busy or state.queued)
    return {
        "phase": "deciding" if deciding else state.phase.value,
        "idle": round(max(now - state.active_at, 0.0), 3),
        "update": state.update_state,
        "failures": state.failures,
        "retryIn": round(max(state.retry_at - now, 0.0), 3) if state.dvu is Dvu.WAITING else 0.0,
        "done": 0 if progress is None else progress.done,
        "total": None if progress is None else progress.total,
        "silent": 0.0 if progress is None else round(progress.silent(now), 3),
        "updateSeconds": 0.0 if progress is None else round(now - progress.started, 3),
        "stopping": "" if state.stopping is None else state.stopping.value,
        "deliveries": owner.lease.task.message.delivered,
        "appendWaits": 0.0 if log is None else round(log.append_waits(), 3),
        "appendTook": 0.0 if log is None else round(log.append_took(), 3),
    }


def take_census(
    owners: Collection[Owner], running: Iterable[Progress], slow_updates: Iterable[SlowUpdate], now: float
) -> Census:
    """Count the owners by their states, and describe the `running` updates. This takes time in proportion to the number
    of owners."""
    states = [owner.lifecycle for owner in owners]
    logs = [owner.commits for owner in owners if owner.commits is not None]
    return Census(
        phases=Counter(state.phase.value for state in states),
        updates=Counter(PUT_OFF if state.is_put_off else state.update_state for state in states),
        slow_updates=tuple(slow_updates),
        debt_age=max((log.debt.age() for log in logs), default=0.0),
        update_silent=max((update.silent(now) for update in running), default=0.0),
        append_age=max((log.append_waits() for log in logs), default=0.0),
        values=sum(len(log.state.cells) for log in logs),
        tail_max=max((log.tail_weight for log in logs), default=0),
    )
