"""From what size on which way is taken, where there are several ways to the same result.

Invariant: what comes out depends on none of them. So each can be forced, and tests do it: all of them to the lowest
value that means anything (whatever begins from some size on begins at once), all to the highest (it never does), or
each drawn by itself.

Whoever chooses reads `now` at that moment, and `forced` replaces it in this process.
`rebaser.runtime.forced_thresholds` does it from an environment variable, for processes that a test starts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, TypeVar

NEVER: Final = 1 << 40  # larger than any size there is, and twice that, or a sum of some, still fits in 64 bits
_SMALL: Final = (1, 2, 3, 5, 8, 20, 60, 200, 1000)


def _from(default: int, lowest: int = 0, highest: int = NEVER) -> Any:
    return field(default=default, metadata={"lowest": lowest, "highest": highest})


def _share(default: float, lowest: float = 0.0, highest: float = 1.0) -> Any:
    return field(default=default, metadata={"lowest": lowest, "highest": highest})


T = TypeVar("T")


class RandomSource(Protocol):
    """As `random.Random` has it."""

    def choice(self, seq: Sequence[T], /) -> T: ...
    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, repr=False)
class Thresholds:
    """Sizes at which another way begins. Bytes are of what is encoded unless it says otherwise."""

    # -- planning an update ------------------------------------------------------------------------------------------

    packet_bytes: int = _from(8 * 1024 * 1024, 1)
    """Bytes of a packet; what does not fit goes into another, or into the next wave. One value always fits."""
    parallelism: int = _from(2, 1, 64)
    """Packets of a wave if there is work for them: how many tasks run at once."""
    task_work: int = _from(150_000, 1)
    """Nodes and edges that are worth a task of their own: a second one costs 30 to 45 ms before it helps."""
    interpreted_max: int = _from(300, -1)
    """Positions up to which planning is done by Python; more are done by compiled code."""
    interpreted_max_cold: int = _from(100_000, -1)
    """The same while Spark starts, which loading or making compiled code would hold up by seconds."""
    checked: int = _from(16)
    """Inputs of a value up to which a way back to it is checked, where some ways are no longer true; else it counts as
    reached."""
    whole: int = _from(20_000)
    """Values of a change set from which on an update that reaches much of it is swept as a whole."""
    share: int = _from(32, 1)
    """One of so many values reached is much, once all are in order; to put them in order takes four times as much."""
    slow: float = _share(1 / 16)
    """Share of what is computed that may be left to Python in a sweep of the whole, which does not stop where nothing
    changes."""
    whole_all: float = _share(2 / 3, 0.0, 2.0)
    """Share reached from which on a sweep of the whole computes all, if compiled code does all of it."""
    whole_sample: int = _from(4096, 1)
    """Nodes that are looked at to tell how much of a sweep is left to Python."""
    whole_texts: int = _from(32 * 1024 * 1024)
    """Bytes of texts, lists and maps that a sweep of the whole may start from."""
    brought_bytes: int = _from(64 * 1024 * 1024)
    """Bytes of a structure up to which it goes with its packet if there is no other place; else packets are cut."""
    named: int = _from(10_000, 1)
    """Values found by a sweep from which on their ids are kept as text, too."""
    little: int = _from(300)
    """Values and edges of a change set up to which an update is planned on the event loop, not in a thread."""
    little_text: int = _from(1000)
    """Characters of the longest text in it up to which the same holds."""
    little_result: int = _from(64 * 1024)
    """Bytes of results up to which the same holds for reading them."""

    # -- computing it ------------------------------------------------------------------------------------------------

    cold: int = _from(200_000)
    """Nodes and inputs of a packet that are worth loading compiled code for."""
    warm: int = _from(400)
    """Nodes and inputs of a packet that are worth calling it for; inputs that are worth translating a formula for."""
    formula: int = _from(16)
    """Nodes that are worth translating a formula for."""
    group: int = _from(20, 1)
    """Values of one definition that are worth a call of their own."""
    group_inputs: int = _from(256, 0, 256)
    """Inputs of one value up to which it is computed in a group. More may be too large together, which the sweep looks
    at: so it is never higher."""
    group_most: int = _from(1 << 15, 1)
    """Values in one such call."""
    group_again: int = _from(256, 1)
    """Values in one such call where a larger one failed."""
    stretch: int = _from(8)
    """Nodes that compiled code must do at once; where it does fewer, it is called less and less often."""
    stretch_longest: int = _from(1024, 1)
    """Nodes that Python does at most, then, before it is called again."""
    reorder: int = _from(1000)
    """Nodes and inputs that are worth putting in another order, for each node where compiled code would stop."""
    result_bytes: int = _from(4 * 1024 * 1024, 1)
    """Bytes of results from which on they come in several parts."""

    # -- getting it to Spark -----------------------------------------------------------------------------------------

    parcel: int = _from(128 * 1024, 1)
    """Bytes of a packet or its results from which on they go through a file, on one machine."""
    lane: int = _from(512 * 1024)
    """Bytes of packets, or of results, up to which a call is small, and may share a job."""
    lane_calls: int = _from(256, 1)
    """Calls that share a job."""
    relation: int = _from(512 * 1024, 0, 64 * 1024 * 1024)
    """Bytes of a job's rows up to which they travel within its plan; more is kept by the Spark server."""

    # -- requests and the log ----------------------------------------------------------------------------------------

    inline: int = _from(NEVER)
    """Bytes of a message up to which its updates or results stand in it, not in a blob; half of what NATS takes is the
    most."""
    inline_updates: int = _from(10_000)
    """Updates or results of a commit up to which the same holds: encoding more is some ten milliseconds."""
    inline_table: int = _from(1_000)
    """Results in columns up to which the same holds: in a blob they stay in columns."""
    fold: int = _from(256, 1)
    """Values laid over the columns that a fold works into them, besides its own."""
    settle: int = _from(500, 1)
    """Values laid over the columns that are worked in at a time around a view."""
    here: int = _from(32 * 1024)
    """Bytes that are worked on on the event loop, not in a thread."""
    decode_here: int = _from(256 * 1024)
    """The same for a blob of updates that is decoded."""
    hash_here: int = _from(256 * 1024)
    """The same for a blob that is hashed."""

    # -- the state in columns ----------------------------------------------------------------------------------------

    arrays: int = _from(24, 1)
    """Inputs of a definition from which on it is written by arrays, not by a loop."""
    edges_worn: int = _from(4_096)
    """Edges that came or went, besides a quarter of all, before the way back is built anew."""
    edges_behind: int = _from(1_048_576)
    """Edges that came, besides twice as many as there were, before the way back is forgotten until somebody asks."""
    refs_lost: int = _from(65_536)
    """Inputs that are of no use, besides half of all, before they are brought together."""
    matches_kept: int = _from(16_000_000)
    """Rows of what patterns match that are kept."""
    matches_noted: int = _from(64)
    """What came and went, besides a quarter of what a pattern matches, before that is looked up anew."""
    heads: int = _from(3)
    """Times that all ids are looked through for some of them, before all are taken in."""
    ways_slack: int = _from(65_536)
    """Links from rows to patterns that may be of no use, besides as many as are, before they are made anew."""

    # -- checkpoints -------------------------------------------------------------------------------------------------

    part_rows: int = _from(1_048_576, 1)
    """Rows of a file of a checkpoint."""
    part_bytes: int = _from(64 * 1024 * 1024)
    """Bytes of a file of a checkpoint from which on the next batch goes into another."""
    batch_rows: int = _from(65_536, 1)
    """Rows of a batch: some ten milliseconds."""
    batch_bytes: int = _from(16 * 1024 * 1024)
    """Bytes of texts in a batch, if it has more rows than one."""
    batch_inputs: int = _from(4_000_000)
    """Inputs in a batch, if it has more rows than one."""
    batch_outcomes: int = _from(2_000, 1)
    """Outcomes of requests in one piece."""
    copied: int = _from(10_000, 1)
    """Objects that are copied at a time: nothing else runs meanwhile."""
    compressed: int = _from(1_000)
    """Rows up to which a part is not compressed."""
    names_share: int = _from(10)
    """If rows are fewer than one of so many, their ids are copied one by one, else all there are."""
    delta_share: int = _from(2)
    """If one of so many values changed, a checkpoint is a new base, not a delta; 0: never because of that."""
    delta_bytes: int = _from(2)
    """So many times the bytes of all deltas are as much as a base, and it is time for another; 0: never because of
    that."""
    deltas: int = _from(64)
    """Deltas of one base: one more takes the loader a few milliseconds."""
    counted: int = _from(100_000, 1)
    """Rows from which on their inputs are counted over all rows, not one by one."""

    @classmethod
    def lowest(cls) -> "Thresholds":
        """Whatever begins from some size on begins at once."""
        return cls(**{one.name: one.metadata["lowest"] for one in fields(cls)})

    @classmethod
    def highest(cls) -> "Thresholds":
        """Whatever begins from some size on never does."""
        return cls(**{one.name: one.metadata["highest"] for one in fields(cls)})

    @classmethod
    def drawn(cls, rng: RandomSource) -> "Thresholds":
        """Each by itself: lowest, highest, small, or as it is by default."""
        return cls(**{one.name: _drawn(rng, **one.metadata, default=one.default) for one in fields(cls)})

    def __repr__(self) -> str:
        """Those that are not as they are by default."""
        given = (f"{one.name}={value}" for one in fields(self) if (value := getattr(self, one.name)) != one.default)
        return f"Thresholds({', '.join(given)})"

    def many(self, inputs: int) -> int:
        """How many of `inputs` are much of a large change set."""
        return max(self.whole, inputs // self.layout_share)

    @property
    def layout_share(self) -> int:
        """One of how many values must be reached for all to be put in order."""
        return max(1, self.share // 4)


def _drawn(rng: RandomSource, lowest: Any, highest: Any, default: Any) -> Any:
    small = rng.random() if type(default) is float else min(max(rng.choice(_SMALL), lowest), highest)
    return rng.choice((lowest, highest, small, default))


@contextmanager
def forced(those: Thresholds) -> Iterator[Thresholds]:
    """Inside, this process chooses by `those`; for tests."""
    global now  # noqa: PLW0603 - there is one, and this is the one place that replaces it
    before, now = now, those
    try:
        yield those
    finally:
        now = before


now: Thresholds = Thresholds()
