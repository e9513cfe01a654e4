"""The life of an owned change set, as a pure function: `step(life, event, now) -> (life, effects)`.

    LOADING ──loaded──> ACTIVE ──quiet──────────> RELEASING ──> LOOKING ──> DONE
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
    LOOKING = "looking"
    DONE = "done"


class Dvu(Enum):
    IDLE = "idle"  # nothing owed
    RUNNING = "running"
    WAITING = "waiting"  # owed; the last try failed, here or in an owner that died, and the next is at `retry_at`


class Reason(Enum):
    """Why an owner stops before it is quiet."""

    SHUTDOWN = "shutdown"
    YIELD = "yield"
    HELD = "held"  # the first request in line has to wait: what runs may end, for a while
    TRANSIENT = "transient"
    FENCED = "fenced"


_FORBIDS = (
    Reason.YIELD,
    Reason.HELD,
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

    `delay` (s) for the nak if it is transient; `patience` (s): how long the DVU may go on before that if it is held.
    """

    reason: Reason
    delay: float = 0.0
    patience: float = 0.0


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
class Looked:
    """The last look is over. `found`: requests or debt are left."""

    found: bool


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
    | Looked
    | Tick
)


# -- effects: what to do -----------------------------------------------------------------------------------------------


class Do(Enum):
    """Effects without arguments. The events that report each are in brackets; what is cancelled says `Cancelled`."""

    LOAD = "load"  # read the log and start to consume [Loaded, Failed]
    AWAIT = "await"  # wait until a request is queued [Arrived, Failed]
    DECIDE = "decide"  # take what is queued, decide it, commit it, answer it [Decided, Failed]
    RUN_DVU = "run_dvu"  # [DvuEnded, DvuFailed]
    CANCEL_WORK = "cancel_work"  # stop loading, waiting, DVU and jobs; commits in flight are settled first
    STOP_CONSUMING = "stop_consuming"
    ACK = "ack"  # ack the task, wait until it is gone [Released]
    LOOK = "look"  # [Looked]
    PUBLISH_TASK = "publish_task"


@dataclass(frozen=True, slots=True)
class Nak:
    """Give the task back, to be delivered after `delay` seconds."""

    delay: float


Effect: TypeAlias = Do | Nak


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. A failed DVU is tried again after `dvu_retry`, doubled each time up to `dvu_retry_max`."""

    quiescent_period: float = 10.0
    dvu_retry: float = 0.5
    dvu_retry_max: float = 30.0


@dataclass(frozen=True, slots=True)
class Life:
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

    def wake_at(self, pace: Pace) -> float | None:
        """When the next `Tick` matters, or None."""
        if self.phase is Phase.SETTLING:
            return self.cancel_at
        if self.phase is not Phase.ACTIVE or self.busy or self.queued:
            return None
        if self.dvu is Dvu.WAITING:
            return self.retry_at
        if self.dvu is Dvu.IDLE and not self.owes and not self.jobs:
            return self.active_at + pace.quiescent_period
        return None


Step: TypeAlias = tuple[Life, tuple[Effect, ...]]

START: tuple[Effect, ...] = (Do.LOAD,)


def step(life: Life, event: Event, now: float, pace: Pace) -> Step:
    """The next state and what to do about it. Total: an event that comes late changes nothing."""
    life = _note(life, event, now, pace)
    if isinstance(event, Stop):
        return _stop(life, event.reason)
    if isinstance(event, Failed):
        return _stop(life, event.reason, event.delay, now + event.patience)
    if isinstance(event, DvuFailed) and event.fenced:
        return _stop(life, Reason.FENCED)
    if life.phase is Phase.LOADING and isinstance(event, Loaded):
        life = replace(life, phase=Phase.ACTIVE)
        life, effects = _advance(life, now, pace)
        return life, (Do.AWAIT, *effects)
    if life.phase is Phase.ACTIVE:
        was_deciding = isinstance(event, Decided)
        life, effects = _advance(life, now, pace)
        if was_deciding and not life.busy and life.phase is Phase.ACTIVE:
            effects = (Do.AWAIT, *effects)
        return life, effects
    if life.phase is Phase.SETTLING:
        late = life.cancel_at is not None and now >= life.cancel_at
        life, effects = _settle(replace(life, cancel_at=None) if late else life)
        return life, (Do.CANCEL_WORK, *effects) if late else effects
    if life.phase is Phase.RELEASING and isinstance(event, Released):
        return replace(life, phase=Phase.LOOKING), (Do.LOOK,)
    if life.phase is Phase.LOOKING and isinstance(event, Looked):
        return replace(life, phase=Phase.DONE), (Do.PUBLISH_TASK,) if event.found else ()
    return life, ()


def _note(life: Life, event: Event, now: float, pace: Pace) -> Life:
    """Book what happened, whatever phase it finds us in."""
    match event:
        case Loaded(owes=owes, dvu_delay=delay):
            dvu = Dvu.WAITING if owes and delay > 0 else Dvu.IDLE
            return replace(life, busy=False, owes=owes, active_at=now, dvu=dvu, retry_at=now + delay)
        case Arrived():
            return replace(life, queued=True)
        case Decided(owes=owes, more=more):
            return replace(life, busy=False, queued=more, owes=owes, active_at=now)
        case DvuEnded(owes=owes):
            return replace(life, dvu=Dvu.IDLE, owes=owes, failures=0, active_at=now)
        case Failed() | Cancelled():
            return replace(life, busy=False)
        case DvuFailed():
            wait = min(pace.dvu_retry * 2**life.failures, pace.dvu_retry_max)
            return replace(life, dvu=Dvu.WAITING, failures=min(life.failures + 1, 30), retry_at=now + wait)
        case JobStarted():
            return replace(life, jobs=life.jobs + 1)
        case JobEnded():
            return replace(life, jobs=life.jobs - 1)
        case _:
            return life


def _advance(life: Life, now: float, pace: Pace) -> Step:
    """What an active owner does next: decide, run a DVU, go quiet. Deciding and a DVU may run side by side."""
    effects: list[Effect] = []
    if life.queued and not life.busy:
        life = replace(life, busy=True, queued=False)
        effects.append(Do.DECIDE)
    if life.owes and (life.dvu is Dvu.IDLE or (life.dvu is Dvu.WAITING and now >= life.retry_at)):
        life = replace(life, dvu=Dvu.RUNNING)
        effects.append(Do.RUN_DVU)
    quiet = not (life.busy or life.queued or life.owes or life.jobs) and life.dvu is Dvu.IDLE
    if quiet and now >= life.active_at + pace.quiescent_period:
        return replace(life, phase=Phase.RELEASING), (Do.STOP_CONSUMING, Do.ACK)
    return life, tuple(effects)


def _stop(life: Life, reason: Reason, delay: float = 0.0, cancel_at: float | None = None) -> Step:
    """Begin to end. A later reason replaces an earlier one only if it forbids more."""
    if life.phase in (Phase.RELEASING, Phase.LOOKING, Phase.DONE):
        return life, ()  # it is ending already, and the last look hands over what is left
    if life.stopping is None or _FORBIDS.index(reason) > _FORBIDS.index(life.stopping):
        life = replace(life, stopping=reason, delay=delay, cancel_at=cancel_at if reason is Reason.HELD else None)
    effects: tuple[Effect, ...] = () if life.phase is Phase.SETTLING else (Do.STOP_CONSUMING,)
    if life.stopping not in (Reason.YIELD, Reason.HELD):
        effects = (*effects, Do.CANCEL_WORK)
    life, end = _settle(replace(life, phase=Phase.SETTLING))
    return life, (*effects, *end)


def _settle(life: Life) -> Step:
    """End as soon as nothing of ours is in flight."""
    if life.busy or life.jobs or life.dvu is Dvu.RUNNING:
        return life, ()
    match life.stopping:
        case Reason.YIELD:
            return replace(life, phase=Phase.RELEASING), (Do.ACK,)
        case Reason.FENCED:
            return replace(life, phase=Phase.DONE), (Do.PUBLISH_TASK,)
        case Reason.TRANSIENT | Reason.HELD:
            return replace(life, phase=Phase.DONE), (Nak(life.delay),)
        case _:
            return replace(life, phase=Phase.DONE), (Nak(0.0),)
