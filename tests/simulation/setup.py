"""Draws the world of a seed: its size, its mode, its poison."""

import random
from dataclasses import dataclass
from enum import Enum

from rebaser_core.ids import ChangeSetKey
from rebaser_core.thresholds import Thresholds
from tests.support.thresholds import in_few_parts

# Updates are planned in threads, so each of their steps takes virtual time.
USUAL = Thresholds(plan_on_loop_max_elements=0)
PARTS = 6  # parts of a checkpoint; each takes round trips to read, and without faults nothing may be late
SMALLEST = 70  # about how many values a change set has if its graph is not large


class Mode(Enum):
    """Which faults may occur. Some defects are healed by later events, and show only without faults or without a
    sweeper."""

    CALM = "calm"  # no faults and no sweeper; so nothing may be late, warn or refuse
    GENTLE = "gentle"  # faults that need no sweeper, and no sweeper
    HARSH = "harsh"  # all faults
    GARBAGE = (
        "garbage"  # virtual days of garbage collection, without servers (see `collecting`); never drawn, only chosen
    )
    # Outcomes are forgotten at once, and no request is deleted, so only `applied` prevents a second decision.
    FORGETFUL = "forgetful"

    @classmethod
    def of(cls, seed: int) -> "Mode":
        return (cls.GENTLE, cls.HARSH, cls.CALM, cls.GENTLE, cls.HARSH, cls.HARSH, cls.FORGETFUL, cls.HARSH)[seed % 8]


@dataclass
class Setup:
    """The world of a seed. Times are virtual seconds, sizes are bytes."""

    mode: Mode
    servers: int
    clients: int
    keys: list[ChangeSetKey]
    requests: int
    ack_wait: float
    quiescent_period: float
    concurrency: int
    batch: int
    checkpoint_bytes: int
    max_payload: int
    slow: float  # the longest latency
    garbage: bool
    poison: bool
    timed: bool  # requests come at about the end of the quiescent period
    removal: float  # longest time until an acked message is removed
    engine_fails: float  # chance that a call of the engine fails
    sweep_interval: float
    retry_window: float
    history_for: float = 0.0
    crowded_at: int = 0  # size of all logs from which on history of any age is purged; 0: never
    closed_for: float = 0.0  # until a closed change set is deleted; 0: never
    size: int = 0  # derived values of a larger graph; 0: no larger graph
    thresholds: Thresholds = USUAL

    @classmethod
    def draw(cls, rng: random.Random, mode: Mode) -> "Setup":
        small = rng.random() < 0.5
        calm = mode is Mode.CALM
        crowded = rng.random() < 0.25  # one slot for three change sets
        setup = cls(
            mode,
            servers=rng.choice((1, 2, 2, 3)),
            clients=rng.choice((1, 2)),
            keys=[ChangeSetKey("w", name) for name in "abc"[: rng.choice((1, 1, 2, 3))]],
            requests=rng.choice((4, 8, 12)),
            ack_wait=rng.choice((1.0, 2.0)),
            # So long that the next owner cannot heal in time what is forgotten.
            quiescent_period=rng.choice((0.3, 60.0)) if calm else rng.choice((0.05, 0.3, 1.0)),
            concurrency=rng.choice((1, 2, 100)),
            batch=rng.choice((1, 2, 32)),
            checkpoint_bytes=1024 if small else 1024 * 1024,
            max_payload=2048 if small else 1024 * 1024,
            slow=rng.choice((0.003, 0.003, 0.05)),
            garbage=mode is not Mode.FORGETFUL and rng.random() < 0.3,
            poison=mode is Mode.HARSH and rng.random() < 0.35,
            timed=rng.random() < 0.4,
            removal=rng.choice((0.0, 0.05, 0.5)),
            engine_fails=rng.choice((0.0, 0.05, 0.3)),
            sweep_interval=3600.0 if mode in (Mode.CALM, Mode.GENTLE) else 2.0,
            retry_window=1.0 if mode is Mode.FORGETFUL else 900.0,
        )
        if crowded:
            setup.servers = setup.concurrency = 1
            setup.keys = [ChangeSetKey("w", name) for name in "abc"]
        return setup

    def draw_history(self, rng: random.Random) -> None:
        """Draw for how long history is kept (never, for a part of the run, or for the whole run), and from which size
        of all logs on it is purged."""
        self.history_for = rng.choice((0.0, 0.5, 3.0, 86_400.0))
        self.crowded_at = rng.choice((0, 0, 0, 5_000, 20_000))

    def draw_ways(self, rng: random.Random) -> None:
        """Draw the thresholds, and whether graphs are large enough to reach some of them."""
        self.thresholds = rng.choice((USUAL, Thresholds.lowest(), Thresholds.highest(), *[Thresholds.drawn(rng)] * 5))
        if rng.random() < 0.3:
            self.size = rng.choice((20, 60, 60, 200))
        if self.thresholds is not USUAL:
            self.thresholds = in_few_parts(self.thresholds, self.size + SMALLEST, PARTS)
