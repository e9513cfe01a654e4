"""The lifecycle of an owned change set, as a pure function: `step(state, event, now, timing) -> (state, effects)`.

    LOADING ──loaded──> ACTIVE ──quiet──────────> RELEASING ──> RECHECKING ──> DONE
       │                  │ stop, error, fenced      ^ (ack,        (publishes the task
       │                  v                          │  confirmed)   if work is left)
       └──────────────> SETTLING ──yield, handed over┘
                          └── shutdown, transient, queue blocked: nak ──> DONE
                          └── fenced, task lost: publish the task ──> DONE

Invariants: an owner does not release its task while one of its commits is in flight. A dependent values update (DVU)
starts only when one is due and none is running. Every path ends in exactly one of three ways: the owner acks the task
and rechecks; it naks the task; or, if it was fenced or has lost its task, it does neither.

This module has no clock, no randomness and no I/O. The caller passes `now` in seconds. Events describe what happened;
effects tell the owner what to do, and it reports the results by posting events.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from rebaser_core.backoff import exponential_delay
from rebaser_core.record import record


class Phase(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    SETTLING = "settling"
    RELEASING = "releasing"
    RECHECKING = "rechecking"
    DONE = "done"


class Dvu(Enum):
    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"  # the last attempt failed, or its owner died; the next attempt starts at `retry_at`


class Reason(Enum):
    """The reasons for which an owner stops before its change set is quiet."""

    SHUTDOWN = "shutdown"
    YIELD = "yield"
    HANDED_OVER = "handed_over"  # the owner's last commit replaced the state; the next owner loads the new state
    QUEUE_BLOCKED = "queue_blocked"  # the first queued request has to wait; a running DVU may continue for a while
    TRANSIENT = "transient"
    FENCED = "fenced"  # the log refuses the owner's appends
    TASK_LOST = "task_lost"  # NATS may have delivered the task to another owner, or the task is gone


# In order of increasing severity: while an owner ends, a more severe reason replaces a less severe one.
_SEVERITY = (
    Reason.YIELD,
    Reason.HANDED_OVER,
    Reason.QUEUE_BLOCKED,
    Reason.TRANSIENT,
    Reason.SHUTDOWN,
    Reason.FENCED,
    Reason.TASK_LOST,
)


# -- events: what happened ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """The log is loaded and requests are being consumed. `owes` tells whether a DVU is due. The DVU must not start
    before `dvu_delay` seconds have passed."""

    owes: bool
    dvu_delay: float = 0.0


@record
class Arrived:
    """At least one request is queued in this process."""


@record
class Decided:
    """The requests taken from the queue are decided, and the decisions are durable. `owes` tells whether a DVU is due,
    `more` whether further requests are queued."""

    owes: bool
    more: bool


@dataclass(frozen=True, slots=True)
class DvuEnded:
    """The commit of a DVU is durable. `owes` tells whether another DVU is due, because requests were applied
    meanwhile."""

    owes: bool


@dataclass(frozen=True, slots=True)
class DvuFailed:
    """A DVU could not run, was cancelled, or was fenced, and so is still due. `fenced` tells whether the log refused
    its commit."""

    fenced: bool = False


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A job has started that must end before the owner releases its task: a dead letter, a checkpoint, or a pull."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job for which `JobStarted` was posted has ended."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The branch took over changes of its target without a request. `owes` tells whether a DVU is due."""

    owes: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """Loading, waiting for requests, or deciding failed, and no commit is in flight. Or a pull or a checkpoint found
    that this owner must not append any more (`Reason.FENCED`).

    In the second case, a batch may still be being decided although the owner then no longer counts as busy. That is
    harmless: work is cancelled, the task is neither acked nor nak'd, an append of the batch is stored only if nobody
    has appended since, and `Actor.run` returns only when all work has ended.

    `delay` is the number of seconds until a nak'd task is redelivered. `grace` is the number of seconds for which a
    running DVU may continue if the queue is blocked.
    """

    reason: Reason
    delay: float = 0.0
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Loading or deciding was cancelled. No commit is in flight."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The server stops the owner: to shut down, to yield its slot, or because its streams or its task were lost."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Released:
    """The task was acked and its message is gone, or the owner has given up: the ack could not be confirmed, or the
    task was lost. The task may then be delivered again."""


@dataclass(frozen=True, slots=True)
class Rechecked:
    """The recheck is over. `work_left` tells whether another owner is needed."""

    work_left: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """The timer has fired. It is set for the time that `OwnerState.next_tick` returns, but may fire earlier."""


Event: TypeAlias = (
    Loaded
    | Arrived
    | Decided
    | DvuEnded
    | DvuFailed
    | JobStarted
    | JobEnded
    | Pulled
    | Failed
    | Cancelled
    | Stop
    | Released
    | Rechecked
    | Tick
)


# -- effects: what to do -----------------------------------------------------------------------------------------------


class Command(Enum):
    """Effects without arguments. Brackets list the events that report the end of each effect; cancelled work posts
    `Cancelled`."""

    LOAD = "load"  # read the log, start to consume requests [Loaded, Failed]
    AWAIT = "await"  # wait until a request is queued [Arrived, Failed]
    DECIDE = "decide"  # take queued requests, decide, commit and answer them [Decided, Failed]
    RUN_DVU = "run_dvu"  # run one dependent values update [DvuEnded, DvuFailed]
    CANCEL_WORK = "cancel_work"  # stop loading, waiting, the DVU and jobs; commits in flight are settled first
    STOP_CONSUMING = "stop_consuming"
    ACK = "ack"  # ack the task, wait until the message is gone [Released]
    RECHECK = "recheck"  # look for work that arrived meanwhile [Rechecked]
    PUBLISH_TASK = "publish_task"


@dataclass(frozen=True, slots=True)
class Nak:
    """Give the task back, to be redelivered after `delay` seconds."""

    delay: float


Effect: TypeAlias = Command | Nak


@dataclass(frozen=True, slots=True)
class Timing:
    """The delays of a lifecycle, in seconds. A quiet owner releases its task after `quiescent_period`. A failed DVU is
    retried after `dvu_retry`, doubled each time up to `dvu_retry_max`."""

    quiescent_period: float = 60.0
    dvu_retry: float = 0.5
    dvu_retry_max: float = 30.0


@record
class OwnerState:
    """The state of one owner. `active_at`: when the owner last decided a request, ended a DVU, or finished loading."""

    phase: Phase = Phase.LOADING
    busy: bool = True  # whether the owner is loading or deciding, and so may append a commit
    queued: bool = False
    owes: bool = False
    dvu: Dvu = Dvu.IDLE
    failures: int = 0
    retry_at: float = 0.0
    jobs: int = 0
    active_at: float = 0.0
    stopping: Reason | None = None
    delay: float = 0.0
    cancel_at: float | None = None  # if the queue is blocked: the time at which running work is cancelled

    @property
    def holds_slot(self) -> bool:
        """Whether the owner occupies one of the server's slots. It occupies none while it only waits for its DVU or
        releases its task. Requests that are queued while it is ending do not count: the next owner decides them."""
        ending = self.phase in (Phase.RELEASING, Phase.RECHECKING, Phase.DONE)
        queued = self.queued and self.phase is not Phase.SETTLING
        return not ending and (self.busy or queued or self.dvu is Dvu.IDLE)

    @property
    def update_state(self) -> str:
        """The state of the DVU as metrics report it: the value of `dvu`, or `owed` if a DVU is due and not begun."""
        return "owed" if self.dvu is Dvu.IDLE and self.owes else self.dvu.value

    @property
    def is_put_off(self) -> bool:
        """Whether the DVU waits because it killed or hung earlier owners. False if it waits because it failed in this
        owner."""
        return self.dvu is Dvu.WAITING and not self.failures

    def next_tick(self, timing: Timing) -> float | None:
        """Return the time at which the owner has to post a `Tick`; None if it waits only for other events."""
        if self.phase is _SETTLING:
            return self.cancel_at
        if self.phase is not _ACTIVE or self.busy or self.queued:
            return None
        if self.dvu is _WAITING:
            return self.retry_at
        if self.dvu is _IDLE and not self.owes and not self.jobs:
            return self.active_at + timing.quiescent_period
        return None


# A lookup of an enum member takes 0.1 µs in Python 3.11, and each commit needs these several times.
_ACTIVE, _SETTLING, _IDLE, _RUNNING, _WAITING = Phase.ACTIVE, Phase.SETTLING, Dvu.IDLE, Dvu.RUNNING, Dvu.WAITING
_DECIDE, _AWAIT = (Command.DECIDE,), (Command.AWAIT,)
Step: TypeAlias = tuple[OwnerState, tuple[Effect, ...]]
INITIAL_EFFECTS: tuple[Effect, ...] = (Command.LOAD,)


def step(state: OwnerState, event: Event, now: float, timing: Timing) -> Step:
    """Return the next state and the effects. Every event is accepted; an event that comes too late changes nothing."""
    running = (dvu := state.dvu) is _RUNNING
    if state.phase is _ACTIVE and not state.queued and (running or not state.owes):
        # The two events of each commit get, in half the time, what `step_by_rules` returns, unless more is due.
        kind, busy, owes, active_at = type(event), None, state.owes, state.active_at
        if kind is Arrived:
            busy = None if state.busy else True
        elif kind is Decided and (running or not event.owes) and timing.quiescent_period > 0:  # type: ignore[union-attr]
            busy, owes, active_at = event.more, event.owes, now  # type: ignore[union-attr]
        if busy is not None:
            failures, retry_at, jobs = state.failures, state.retry_at, state.jobs
            stopping, delay, cancel_at = state.stopping, state.delay, state.cancel_at
            return OwnerState(
                _ACTIVE, busy, False, owes, dvu, failures, retry_at, jobs, active_at, stopping, delay, cancel_at
            ), _DECIDE if busy else _AWAIT
    return step_by_rules(state, event, now, timing)


def step_by_rules(state: OwnerState, event: Event, now: float, timing: Timing) -> Step:
    """Return what `step` returns, by rules that hold for all states and events."""
    state = _record(state, event, now, timing)
    if isinstance(event, Stop):
        return _stop(state, event.reason)
    if isinstance(event, Failed):
        return _stop(state, event.reason, event.delay, now + event.grace)
    if isinstance(event, DvuFailed) and event.fenced:
        return _stop(state, Reason.FENCED)
    if state.phase is Phase.LOADING and isinstance(event, Loaded):
        state = replace(state, phase=Phase.ACTIVE)
        state, effects = _advance(state, now, timing)
        return state, (Command.AWAIT, *effects)
    if state.phase is Phase.ACTIVE:
        state, effects = _advance(state, now, timing)
        if isinstance(event, Decided) and not state.busy and state.phase is Phase.ACTIVE:
            effects = (Command.AWAIT, *effects)
        return state, effects
    if state.phase is Phase.SETTLING:
        expired = state.cancel_at is not None and now >= state.cancel_at
        state, effects = _settle(replace(state, cancel_at=None) if expired else state)
        return state, (Command.CANCEL_WORK, *effects) if expired else effects
    if state.phase is Phase.RELEASING and isinstance(event, Released):
        return replace(state, phase=Phase.RECHECKING), (Command.RECHECK,)
    if state.phase is Phase.RECHECKING and isinstance(event, Rechecked):
        return replace(state, phase=Phase.DONE), (Command.PUBLISH_TASK,) if event.work_left else ()
    return state, ()


def _record(state: OwnerState, event: Event, now: float, timing: Timing) -> OwnerState:
    """Return `state`, updated with the facts that `event` reports. This does not depend on the phase."""
    match event:
        case Loaded(owes=owes, dvu_delay=delay):
            dvu = Dvu.WAITING if owes and delay > 0 else Dvu.IDLE
            return replace(state, busy=False, owes=owes, active_at=now, dvu=dvu, retry_at=now + delay)
        case Arrived():
            return replace(state, queued=True)
        case Decided(owes=owes, more=more):
            return replace(state, busy=False, queued=more, owes=owes, active_at=now)
        case DvuEnded(owes=owes):
            return replace(state, dvu=Dvu.IDLE, owes=owes, failures=0, active_at=now)
        case Failed() | Cancelled():
            return replace(state, busy=False)
        case DvuFailed():
            delay = exponential_delay(state.failures, timing.dvu_retry, timing.dvu_retry_max)
            return replace(state, dvu=Dvu.WAITING, failures=state.failures + 1, retry_at=now + delay)
        case Pulled(owes=owes):
            return replace(state, owes=owes)
        case JobStarted():
            return replace(state, jobs=state.jobs + 1)
        case JobEnded():
            return replace(state, jobs=state.jobs - 1)
        case _:
            return state


def _advance(state: OwnerState, now: float, timing: Timing) -> Step:
    """Make an active owner decide requests, run a DVU, or release its task. It may decide requests while a DVU runs."""
    effects: list[Effect] = []
    if state.queued and not state.busy:
        state = replace(state, busy=True, queued=False)
        effects.append(Command.DECIDE)
    if state.owes and (state.dvu is Dvu.IDLE or (state.dvu is Dvu.WAITING and now >= state.retry_at)):
        state = replace(state, dvu=Dvu.RUNNING)
        effects.append(Command.RUN_DVU)
    quiet = not (state.busy or state.queued or state.owes or state.jobs) and state.dvu is Dvu.IDLE
    if quiet and now >= state.active_at + timing.quiescent_period:
        return replace(state, phase=Phase.RELEASING), (Command.STOP_CONSUMING, Command.ACK)
    return state, tuple(effects)


def _stop(state: OwnerState, reason: Reason, delay: float = 0.0, cancel_at: float | None = None) -> Step:
    """Begin to stop the owner for `reason`. A later reason replaces an earlier one only if it is more severe."""
    if state.phase in (Phase.RELEASING, Phase.RECHECKING, Phase.DONE):
        return state, ()  # the owner is ending already; its recheck hands over any work that remains
    if state.stopping is None or _SEVERITY.index(reason) > _SEVERITY.index(state.stopping):
        cancel_at = cancel_at if reason is Reason.QUEUE_BLOCKED else None
        state = replace(state, stopping=reason, delay=delay, cancel_at=cancel_at)
    effects: tuple[Effect, ...] = () if state.phase is Phase.SETTLING else (Command.STOP_CONSUMING,)
    if state.stopping not in (Reason.YIELD, Reason.QUEUE_BLOCKED):
        effects = (*effects, Command.CANCEL_WORK)
    state, end = _settle(replace(state, phase=Phase.SETTLING))
    return state, (*effects, *end)


def _settle(state: OwnerState) -> Step:
    """End the owner if none of its work is in flight; otherwise, change nothing."""
    if state.busy or state.jobs or state.dvu is Dvu.RUNNING:
        return state, ()
    match state.stopping:
        case Reason.YIELD | Reason.HANDED_OVER:
            return replace(state, phase=Phase.RELEASING), (Command.ACK,)
        case Reason.FENCED | Reason.TASK_LOST:
            return replace(state, phase=Phase.DONE), (Command.PUBLISH_TASK,)
        case Reason.TRANSIENT | Reason.QUEUE_BLOCKED:
            return replace(state, phase=Phase.DONE), (Nak(state.delay),)
        case _:
            return replace(state, phase=Phase.DONE), (Nak(0.0),)
