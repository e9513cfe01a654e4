"""What kind of world a seed is: its size, its mode, its poison."""

import random
from dataclasses import dataclass
from enum import Enum

from rebaser_core.ids import ChangeSetKey
from rebaser_core.thresholds import Thresholds
from tests.support.thresholds import in_few_parts

USUAL = Thresholds(plan_on_loop_max_elements=0)  # each step of an update takes its time
PARTS = 6  # of a checkpoint: each is read for some round trips, and nobody may be late where nothing goes wrong
SMALLEST = 70  # values of a change set, about, whose graph is not grown


class Mode(Enum):
    """What may go wrong. What heals itself after a fault is seen only where nothing goes wrong, or nobody sweeps."""

    CALM = "calm"  # nothing, and so nobody may be late, warn or refuse; no sweeper
    GENTLE = "gentle"  # what needs no sweeper, and there is none
    HARSH = "harsh"  # everything
    GARBAGE = (
        "garbage"  # virtual days of garbage collection, without servers: see `collecting`; no seed has it by itself
    )
    FORGETFUL = "forgetful"  # outcomes are forgotten at once, and nothing is deleted: only `applied` is left

    @classmethod
    def of(cls, seed: int) -> "Mode":
        return (cls.GENTLE, cls.HARSH, cls.CALM, cls.GENTLE, cls.HARSH, cls.HARSH, cls.FORGETFUL, cls.HARSH)[seed % 8]


@dataclass
class Setup:
    """The size of a world, drawn from its seed. Times are virtual seconds, sizes bytes."""

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
    timed: bool  # requests come about when the quiescent period ends
    removal: float  # until what was acked is gone, at most
    engine_fails: float  # chance
    sweep_interval: float
    retry_window: float
    history_for: float = 0.0
    crowded_at: int = 0  # bytes of all logs from which on history gives way; 0: never
    closed_for: float = 0.0  # until what is closed is deleted; 0: never
    size: int = 0  # derived values of a larger graph, 0 for none
    thresholds: Thresholds = USUAL

    @classmethod
    def draw(cls, rng: random.Random, mode: Mode) -> "Setup":
        small = rng.random() < 0.5
        calm = mode is Mode.CALM
        crowded = rng.random() < 0.25  # one slot, and three who want it
        setup = cls(
            mode,
            servers=rng.choice((1, 2, 2, 3)),
            clients=rng.choice((1, 2)),
            keys=[ChangeSetKey("w", name) for name in "abc"[: rng.choice((1, 1, 2, 3))]],
            requests=rng.choice((4, 8, 12)),
            ack_wait=rng.choice((1.0, 2.0)),
            # So long that what is forgotten is not mended by the next owner in time.
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
        """Draw for how long history is kept (not at all, for a part of the run, or for all of it), and when there is no
        room for it."""
        self.history_for = rng.choice((0.0, 0.5, 3.0, 86_400.0))
        self.crowded_at = rng.choice((0, 0, 0, 5_000, 20_000))

    def draw_ways(self, rng: random.Random) -> None:
        """Draw which ways are taken to the same results, and whether graphs are large enough for some of them."""
        self.thresholds = rng.choice((USUAL, Thresholds.lowest(), Thresholds.highest(), *[Thresholds.drawn(rng)] * 5))
        if rng.random() < 0.3:
            self.size = rng.choice((20, 60, 60, 200))
        if self.thresholds is not USUAL:
            self.thresholds = in_few_parts(self.thresholds, self.size + SMALLEST, PARTS)
