"""The state of an owned change set, as a pure function: `step(state, event, now) -> (state, effects)`.

    LOADING ──loaded──> ACTIVE ──quiet──────────> RELEASING ──> RECHECKING ──> DONE
       │                  │ stop, error, fenced      ^ (ack,        (last look; publishes the task
       │                  v                          │  confirmed)   if anything was found)
       └──────────────> SETTLING ──yield─────────────┘
                          └── shutdown, transient, held: nak ──> DONE
                          └── fenced: publish the task ──> DONE

Invariants: nothing is released while a commit is in flight; a DVU runs only when one is owed and none runs; every path
ends in exactly one of ack + last look, nak, or (fenced) neither. No clock, no randomness, no I/O: `now` is a value in
seconds, events are what happened, effects are what the shell must do and report back.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias


class Phase(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    SETTLING = "settling"
    RELEASING = "releasing"
    RECHECKING = "rechecking"
    DONE = "done"


class Dvu(Enum):
    IDLE = "idle"  # nothing owed
    RUNNING = "running"
    WAITING = "waiting"  # owed; the last try failed, here or in an owner that died, and the next is at `retry_at`


class Reason(Enum):
    """Why an owner stops before it is quiet."""

    SHUTDOWN = "shutdown"
    YIELD = "yield"
    QUEUE_BLOCKED = "queue_blocked"  # the first request in line has to wait: what runs may end, for a while
    TRANSIENT = "transient"
    FENCED = "fenced"


_SEVERITY = (
    Reason.YIELD,
    Reason.QUEUE_BLOCKED,
    Reason.TRANSIENT,
    Reason.SHUTDOWN,
    Reason.FENCED,
)  # each forbids more than the one before


# -- events: what happened ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """The state is folded and requests are being consumed. `owes`: a DVU is due, in `dvu_delay` seconds."""

    owes: bool
    dvu_delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """At least one request is queued here."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What was taken from the queue is decided and durable. `more`: something is queued again."""

    owes: bool
    more: bool


@dataclass(frozen=True, slots=True)
class DvuEnded:
    """A DVU's commit is durable. `owes`: requests applied meanwhile owe another."""

    owes: bool


@dataclass(frozen=True, slots=True)
class DvuFailed:
    """A DVU could not run, or was cancelled, or its commit was `fenced`. Its roots stay."""

    fenced: bool = False


@dataclass(frozen=True, slots=True)
class JobStarted:
    """Work after a commit began that a release has to wait for (a dead letter, a checkpoint)."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Such work ended."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Loading, waiting or deciding failed; nothing of it is in flight.

    `delay` (s) for the nak if it is transient; `grace` (s): how long the DVU may go on before that if it is held.
    """

    reason: Reason
    delay: float = 0.0
    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Loading or deciding was cancelled; nothing of it is in flight."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody asks the owner to end: a shutdown, a yield, or a lease that ran out (`FENCED`)."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Released:
    """The task's ack is confirmed and the message is gone; or it could not be confirmed, and the task comes back."""


@dataclass(frozen=True, slots=True)
class Rechecked:
    """The last look is over. `work_left`: requests or debt are left."""

    work_left: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event: TypeAlias = (
    Loaded
    | Arrived
    | Decided
    | DvuEnded
    | DvuFailed
    | JobStarted
    | JobEnded
    | Failed
    | Cancelled
    | Stop
    | Released
    | Rechecked
    | Tick
)


# -- effects: what to do -----------------------------------------------------------------------------------------------


class Command(Enum):
    """Effects without arguments. The events that report each are in brackets; what is cancelled says `Cancelled`."""

    LOAD = "load"  # read the log and start to consume [Loaded, Failed]
    AWAIT = "await"  # wait until a request is queued [Arrived, Failed]
    DECIDE = "decide"  # take what is queued, decide it, commit it, answer it [Decided, Failed]
    RUN_DVU = "run_dvu"  # [DvuEnded, DvuFailed]
    CANCEL_WORK = "cancel_work"  # stop loading, waiting, DVU and jobs; commits in flight are settled first
    STOP_CONSUMING = "stop_consuming"
    ACK = "ack"  # ack the task, wait until it is gone [Released]
    RECHECK = "recheck"  # [Rechecked]
    PUBLISH_TASK = "publish_task"


@dataclass(frozen=True, slots=True)
class Nak:
    """Give the task back, to be delivered after `delay` seconds."""

    delay: float


Effect: TypeAlias = Command | Nak


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A failed DVU is tried again after `dvu_retry`, doubled each time up to `dvu_retry_max`."""

    quiescent_period: float = 10.0
    dvu_retry: float = 0.5
    dvu_retry_max: float = 30.0


@dataclass(frozen=True, slots=True)
class OwnerState:
    """Where an owner stands. `active_at`: when a request was last decided, or loading ended."""

    phase: Phase = Phase.LOADING
    busy: bool = True  # loading or deciding: something of ours may be about to commit
    queued: bool = False
    owes: bool = False
    dvu: Dvu = Dvu.IDLE
    failures: int = 0
    retry_at: float = 0.0
    jobs: int = 0
    active_at: float = 0.0
    stopping: Reason | None = None
    delay: float = 0.0
    cancel_at: float | None = None  # while held: when what still runs is cancelled

    @property
    def holds_slot(self) -> bool:
        """Whether it counts against the server's concurrency: not while all it does is wait for its DVU."""
        return self.phase is not Phase.DONE and (self.busy or self.queued or self.dvu is Dvu.IDLE)

    def next_tick(self, timing: Timing) -> float | None:
        """When the next `Tick` matters, or None."""
        if self.phase is Phase.SETTLING:
            return self.cancel_at
        if self.phase is not Phase.ACTIVE or self.busy or self.queued:
            return None
        if self.dvu is Dvu.WAITING:
            return self.retry_at
        if self.dvu is Dvu.IDLE and not self.owes and not self.jobs:
            return self.active_at + timing.quiescent_period
        return None


Step: TypeAlias = tuple[OwnerState, tuple[Effect, ...]]

INITIAL_EFFECTS: tuple[Effect, ...] = (Command.LOAD,)


def step(state: OwnerState, event: Event, now: float, timing: Timing) -> Step:
    """The next state and what to do about it. Total: an event that comes late changes nothing."""
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
        was_deciding = isinstance(event, Decided)
        state, effects = _advance(state, now, timing)
        if was_deciding and not state.busy and state.phase is Phase.ACTIVE:
            effects = (Command.AWAIT, *effects)
        return state, effects
    if state.phase is Phase.SETTLING:
        late = state.cancel_at is not None and now >= state.cancel_at
        state, effects = _settle(replace(state, cancel_at=None) if late else state)
        return state, (Command.CANCEL_WORK, *effects) if late else effects
    if state.phase is Phase.RELEASING and isinstance(event, Released):
        return replace(state, phase=Phase.RECHECKING), (Command.RECHECK,)
    if state.phase is Phase.RECHECKING and isinstance(event, Rechecked):
        return replace(state, phase=Phase.DONE), (Command.PUBLISH_TASK,) if event.work_left else ()
    return state, ()


def _record(state: OwnerState, event: Event, now: float, timing: Timing) -> OwnerState:
    """Book what happened, whatever phase it finds us in."""
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
            wait = min(timing.dvu_retry * 2**state.failures, timing.dvu_retry_max)
            return replace(state, dvu=Dvu.WAITING, failures=min(state.failures + 1, 30), retry_at=now + wait)
        case JobStarted():
            return replace(state, jobs=state.jobs + 1)
        case JobEnded():
            return replace(state, jobs=state.jobs - 1)
        case _:
            return state


def _advance(state: OwnerState, now: float, timing: Timing) -> Step:
    """What an active owner does next: decide, run a DVU, go quiet. Deciding and a DVU may run side by side."""
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
    """Begin to end. A later reason replaces an earlier one only if it forbids more."""
    if state.phase in (Phase.RELEASING, Phase.RECHECKING, Phase.DONE):
        return state, ()  # it is ending already, and the last look hands over what is left
    if state.stopping is None or _SEVERITY.index(reason) > _SEVERITY.index(state.stopping):
        state = replace(
            state, stopping=reason, delay=delay, cancel_at=cancel_at if reason is Reason.QUEUE_BLOCKED else None
        )
    effects: tuple[Effect, ...] = () if state.phase is Phase.SETTLING else (Command.STOP_CONSUMING,)
    if state.stopping not in (Reason.YIELD, Reason.QUEUE_BLOCKED):
        effects = (*effects, Command.CANCEL_WORK)
    state, end = _settle(replace(state, phase=Phase.SETTLING))
    return state, (*effects, *end)


def _settle(state: OwnerState) -> Step:
    """End as soon as nothing of ours is in flight."""
    if state.busy or state.jobs or state.dvu is Dvu.RUNNING:
        return state, ()
    match state.stopping:
        case Reason.YIELD:
            return replace(state, phase=Phase.RELEASING), (Command.ACK,)
        case Reason.FENCED:
            return replace(state, phase=Phase.DONE), (Command.PUBLISH_TASK,)
        case Reason.TRANSIENT | Reason.QUEUE_BLOCKED:
            return replace(state, phase=Phase.DONE), (Nak(state.delay),)
        case _:
            return replace(state, phase=Phase.DONE), (Nak(0.0),)
