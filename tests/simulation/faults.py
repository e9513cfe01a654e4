"""Draws the faults of a run from its seed.

A run has a few kinds of faults, each with its own rate, and one kind of message that is hit more often: many different
runs find more bugs than runs that have all faults. A fault strikes before a message took effect, or after. In a third
of the runs, a fault is likely to strike the next message on the same subject, too, which is often the sender's second
attempt: few bugs show at a first attempt.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.loop import Process
from tests.simulation.model.store import Headers
from tests.simulation.network import SAFE, Fate
from tests.simulation.setup import Mode

# Faults that break no guarantee even without a sweeper: no process dies, and a message that is repeated arrives in the
# end.
GENTLE = ("pause before", "pause after", "late", "duplicate", "lose answer", "late delivery", "double delivery")
HARSH = (*GENTLE, "crash before", "crash after", "lose", "lose delivery")
SUBJECTS = ("requests", "tasks", "commits", "dlq", "ack", "api", "reply", "blob", "pull")
DELETES = ("$JS.API.STREAM.MSG.DELETE.", "$JS.API.STREAM.PURGE.REBASER_REQUESTS")
MOST = 40  # maximum faults of one run that strike messages
# Maximum consecutive answers lost to one process on one subject if there is no sweeper. Otherwise, a client might never
# learn that its request is stored, and would not publish the task.
IN_A_ROW = 2


class Hands(Protocol):
    """Strikes processes."""

    def crash(self, process: Process) -> None: ...

    def pause(self, process: Process, seconds: float) -> None: ...


def subject_kind(subject: str) -> str:
    head = subject.split(".", 2)
    if head[0] == "rebaser":
        return head[1]
    if head[0] == "$O":
        return "blob"
    if head[0] == "$JS":
        if head[1] == "ACK":
            return "ack"
        return "pull" if ".MSG.NEXT." in subject else "api"
    return "reply"


@dataclass
class Plan:
    """Rates of faults by kind (chance for each message), and how long faults may last (seconds)."""

    rates: dict[str, float]
    focus: str
    ack_wait: float
    lost: tuple[str, ...] = ()  # prefixes of the subjects whose messages are all lost
    in_a_row: int = MOST  # maximum consecutive answers that are lost
    again: float = 0.0  # chance that a fault also strikes the next message on its subject

    @classmethod
    def draw(cls, rng: random.Random, ack_wait: float, mode: Mode) -> "Plan":
        if mode is Mode.FORGETFUL:
            return cls({}, "", ack_wait, DELETES)
        kinds = [kind for kind in (GENTLE if mode is Mode.GENTLE else HARSH) if rng.random() < 0.5]
        rates = {kind: 10 ** rng.uniform(-3.5, -1.3) for kind in kinds}
        focus, in_a_row = rng.choice(SUBJECTS), IN_A_ROW if mode is Mode.GENTLE else MOST
        return cls(rates, focus, ack_wait, in_a_row=in_a_row, again=rng.choice((0.0, 0.0, 0.5)))


@dataclass
class SeededFaults:
    """Draws and carries out faults while `on` is true. `counts` has their numbers by kind."""

    plan: Plan
    hands: Hands
    rng: random.Random
    tell: Callable[[str, str], None]
    on: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    # Consecutive lost answers by process and subject.
    _unanswered: dict[tuple[str, str], int] = field(default_factory=dict)
    _struck: dict[str, str] = field(default_factory=dict)  # by subject: the fault that struck its last message

    def sending(self, process: Process, subject: str, data: bytes) -> Fate:
        if self.on and self.plan.lost and subject.startswith(self.plan.lost):
            return Fate(copies=0)
        kind = self._strike(subject, ("pause before", "pause after", "late", "duplicate", "lose answer"))
        kind = kind or self._strike(subject, ("crash before", "crash after", "lose"))
        in_a_row = self._unanswered.pop((process.name, subject), 0)
        if kind == "lose answer":
            if in_a_row >= self.plan.in_a_row:
                return SAFE
            self._unanswered[process.name, subject] = in_a_row + 1
        if kind is None:
            return SAFE
        self._note(
            process, f"{kind}: {subject} {data[:12]!r}" if subject.startswith("$JS.ACK") else f"{kind}: {subject}"
        )
        if kind == "duplicate":
            return Fate(copies=2)
        if kind == "lose answer":
            return Fate(lose_answer=True)
        if kind == "lose":
            return Fate(copies=0)
        if kind == "late":
            return Fate(late=self.rng.uniform(0.01, 2.0) * self.plan.ack_wait)
        action = self._crash(process) if kind.startswith("crash") else self._pause(process)
        return Fate(before=action) if kind.endswith("before") else Fate(after=action)

    def receiving(self, process: Process, subject: str, headers: Headers | None) -> Fate:
        kind = self._strike(subject, ("late delivery", "double delivery", "lose delivery"))
        if kind is None:
            return SAFE
        self._note(process, f"{kind}: {subject}")
        if kind == "double delivery":
            return Fate(copies=2)
        if kind == "lose delivery":
            return Fate(copies=0)
        return Fate(late=self.rng.uniform(0.001, 1.0) * self.plan.ack_wait)

    def total(self) -> int:
        return sum(self.counts.values())

    def note(self, who: str, what: str) -> None:
        name = what.partition(":")[0]
        self.counts[name] = self.counts.get(name, 0) + 1
        self.tell(who, f"*** {what}")

    def _note(self, process: Process, what: str) -> None:
        self.note(process.name, what)

    def _strike(self, subject: str, kinds: tuple[str, ...]) -> str | None:
        if not self.on or self.total() >= MOST:
            return None
        if self.plan.again and self._struck.get(subject) in kinds:
            kind = self._struck.pop(subject)
            if self.rng.random() < self.plan.again:
                self._struck[subject] = kind
                return kind
        factor = 8.0 if subject_kind(subject) == self.plan.focus else 1.0
        for kind in kinds:
            rate = self.plan.rates.get(kind)
            if rate is not None and self.rng.random() < rate * factor:
                self._struck[subject] = kind
                return kind
        return None

    def _crash(self, process: Process) -> Callable[[], None]:
        return lambda: self.hands.crash(process)

    def _pause(self, process: Process) -> Callable[[], None]:
        seconds = self.plan.ack_wait * self.rng.choice((0.1, 0.5, 1.5, 3.0))
        return lambda: self.hands.pause(process, seconds)
