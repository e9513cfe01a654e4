"""Thresholds: sizes from which the product takes another way to the same result.

Invariant: no result depends on a threshold. So tests can force each of them: all to their lowest meaningful value, so
that every other way begins at once; all to their highest, so that it never begins; or each to a random value.

Code reads `now` at the moment when it chooses a way. `forced` replaces `now` in this process;
`rebaser.runtime.forced_thresholds` replaces it from an environment variable, for processes that a test starts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, TypeVar

NEVER: Final = 1 << 40  # larger than every real size; twice that, or a sum of a few, still fits in 64 bits
_SMALL: Final = (1, 2, 3, 5, 8, 20, 60, 200, 1000)


def _from(default: int, lowest: int = 0, highest: int = NEVER) -> Any:
    return field(default=default, metadata={"lowest": lowest, "highest": highest})


def _share(default: float, lowest: float = 0.0, highest: float = 1.0) -> Any:
    return field(default=default, metadata={"lowest": lowest, "highest": highest})


T = TypeVar("T")


class RandomSource(Protocol):
    """The methods of `random.Random` that `drawn` needs."""

    def choice(self, seq: Sequence[T], /) -> T: ...
    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, repr=False)
class Thresholds:
    """Sizes at which another way begins. Bytes are those of the encoded form unless a docstring says otherwise."""

    # -- planning an update ------------------------------------------------------------------------------------------

    packet_bytes: int = _from(8 * 1024 * 1024, 1)
    """Bytes of a packet. What does not fit goes into another packet or into the next wave; one value always fits."""
    parallelism: int = _from(2, 1, 64)
    """Packets of a wave if there is enough work for them; that many tasks run at once."""
    task_work: int = _from(150_000, 1)
    """Nodes and edges that justify a task of their own: a second task costs 30 to 45 ms before it helps."""
    interpreted_max: int = _from(300, -1)
    """Positions up to which planning is done by Python; more are done by compiled code."""
    interpreted_max_cold: int = _from(100_000, -1)
    """The same while Spark starts, which loading or making compiled code would hold up by seconds."""
    checked: int = _from(16)
    """Inputs of a value up to which an edge to it is verified while some edges are dead; a value with more inputs
    counts as reached."""
    whole: int = _from(20_000)
    """Values of a change set from which an update that reaches much of it is planned over the full graph."""
    share: int = _from(32, 1)
    """An update reaches much of a change set if it reaches one of this many values and the layout of the graph is
    cached; building the layout takes four times that share."""
    slow: float = _share(1 / 16)
    """Share of the computed values that Python may compute in a sweep of the full graph; such a sweep does not stop
    where nothing changes."""
    whole_all: float = _share(2 / 3, 0.0, 2.0)
    """Share of values reached from which a sweep of the full graph computes all values, if compiled code computes
    them."""
    whole_sample: int = _from(4096, 1)
    """Nodes sampled to estimate how much of a sweep Python has to compute."""
    whole_texts: int = _from(32 * 1024 * 1024)
    """Bytes of texts, lists and maps among the inputs of a sweep of the full graph."""
    brought_bytes: int = _from(64 * 1024 * 1024)
    """Bytes of a structure up to which it travels in its packet if it can be stored nowhere else; a larger one means
    that the update is planned in packets of parts."""
    named: int = _from(10_000, 1)
    """Values computed by a sweep from which their ids are kept as text, too."""
    little: int = _from(300)
    """Values and edges of a change set up to which an update is planned on the event loop instead of in a thread."""
    little_text: int = _from(1000)
    """Characters of the longest text in such a change set."""
    little_result: int = _from(64 * 1024)
    """Bytes of results up to which they are decoded on the event loop."""

    # -- computing it ------------------------------------------------------------------------------------------------

    cold: int = _from(200_000)
    """Nodes and inputs of a packet that justify loading compiled code."""
    warm: int = _from(400)
    """Nodes and inputs of a packet that justify calling compiled code; inputs that justify translating a formula."""
    formula: int = _from(16)
    """Nodes that justify translating a formula."""
    group: int = _from(20, 1)
    """Values with the same definition that justify a call for all of them."""
    group_inputs: int = _from(256, 0, 256)
    """Inputs of a value up to which it is computed in such a group. More inputs may be too large together, which only
    the evaluation of a single value checks: so this is never higher."""
    group_most: int = _from(1 << 15, 1)
    """Values in one call for a group."""
    group_again: int = _from(256, 1)
    """Values in one call for a group after a larger call failed."""
    stretch: int = _from(8)
    """Nodes that a call of compiled code must compute; after a call that computes fewer, the calls become rarer."""
    stretch_longest: int = _from(1024, 1)
    """Nodes that Python computes at most before the next such call."""
    reorder: int = _from(1000)
    """Nodes and inputs, for each node where compiled code would stop, that justify putting a packet in another
    order."""
    result_bytes: int = _from(4 * 1024 * 1024, 1)
    """Bytes of results from which they are returned in several parts."""

    # -- getting it to Spark -----------------------------------------------------------------------------------------

    parcel: int = _from(128 * 1024, 1)
    """Bytes of a packet or its results from which they go through a file, if server and worker share a machine."""
    lane: int = _from(512 * 1024)
    """Bytes of packets, or of results, up to which a call is small and may share a job."""
    lane_calls: int = _from(256, 1)
    """Calls that share a job, at most."""
    relation: int = _from(512 * 1024, 0, 64 * 1024 * 1024)
    """Bytes of a job's rows up to which they travel within its Spark plan; the Spark server stores larger ones."""

    # -- requests and the log ----------------------------------------------------------------------------------------

    inline: int = _from(NEVER)
    """Bytes of a message up to which its updates or results are inline, not in a blob; never more than half of the
    maximum payload of NATS."""
    inline_updates: int = _from(10_000)
    """Updates or results of a commit up to which they are inline: encoding more takes tens of milliseconds."""
    inline_table: int = _from(1_000)
    """Results in columns up to which they are inline: in a blob they stay in columns."""
    fold: int = _from(256, 1)
    """Values of the overlay that each fold merges into the columns, besides its own."""
    settle: int = _from(500, 1)
    """Values of the overlay that are merged at a time around a view."""
    here: int = _from(32 * 1024)
    """Bytes up to which they are processed on the event loop instead of in a thread."""
    decode_here: int = _from(256 * 1024)
    """Bytes of a blob of updates up to which it is decoded on the event loop."""
    hash_here: int = _from(256 * 1024)
    """Bytes of a blob up to which it is hashed on the event loop."""

    # -- the state in columns ----------------------------------------------------------------------------------------

    arrays: int = _from(24, 1)
    """Inputs of a definition from which it is written by array operations instead of a loop."""
    edges_worn: int = _from(4_096)
    """Edges added or dead, in addition to a quarter of all, before the dependents are rebuilt."""
    edges_behind: int = _from(1_048_576)
    """Edges added, in addition to twice the number built, before the dependents are dropped until the next lookup."""
    refs_lost: int = _from(65_536)
    """Inputs of removed definitions, in addition to half of all, before the inputs are compacted."""
    matches_kept: int = _from(16_000_000)
    """Rows of matches that are cached, over all patterns."""
    matches_noted: int = _from(64)
    """Values added or removed, in addition to a quarter of what a pattern matches, before its cached matches are
    dropped."""
    heads: int = _from(3)
    """Scans of all ids for some first segments before the id tree takes in all ids."""
    ways_slack: int = _from(65_536)
    """Unused links from rows to patterns, in addition to as many as are in use, before the links are rebuilt."""

    # -- checkpoints -------------------------------------------------------------------------------------------------

    part_rows: int = _from(1_048_576, 1)
    """Rows of a file of a checkpoint."""
    part_bytes: int = _from(64 * 1024 * 1024)
    """Bytes of a file of a checkpoint from which the next batch goes into another file."""
    batch_rows: int = _from(65_536, 1)
    """Rows of a batch: tens of milliseconds of work."""
    batch_bytes: int = _from(16 * 1024 * 1024)
    """Bytes of texts in a batch of more than one row."""
    batch_inputs: int = _from(4_000_000)
    """Inputs in a batch of more than one row."""
    batch_outcomes: int = _from(2_000, 1)
    """Outcomes of requests in one batch."""
    copied: int = _from(10_000, 1)
    """Objects that are copied at a time; nothing else runs meanwhile."""
    compressed: int = _from(1_000)
    """Rows up to which a part is not compressed."""
    names_share: int = _from(10)
    """If fewer than one of this many rows is written, ids are copied one by one, otherwise the whole list of ids."""
    delta_share: int = _from(2)
    """If more than one of this many values changed, the checkpoint is a new base instead of a delta; 0: never for this
    reason."""
    delta_bytes: int = _from(2)
    """If this many times the bytes of all deltas exceed those of the base, the next checkpoint is a new base; 0: never
    for this reason."""
    deltas: int = _from(64)
    """Deltas of one base; each costs a load a few milliseconds."""
    counted: int = _from(100_000, 1)
    """Rows from which their inputs are counted over all rows at once instead of one by one."""

    @classmethod
    def lowest(cls) -> "Thresholds":
        """Every other way begins at once."""
        return cls(**{field_.name: field_.metadata["lowest"] for field_ in fields(cls)})

    @classmethod
    def highest(cls) -> "Thresholds":
        """No other way ever begins."""
        return cls(**{field_.name: field_.metadata["highest"] for field_ in fields(cls)})

    @classmethod
    def drawn(cls, rng: RandomSource) -> "Thresholds":
        """Each threshold drawn by itself: lowest, highest, small or default."""
        return cls(**{field_.name: _drawn(rng, **field_.metadata, default=field_.default) for field_ in fields(cls)})

    def __repr__(self) -> str:
        """The thresholds that differ from their defaults."""
        given = (
            f"{field_.name}={value}"
            for field_ in fields(self)
            if (value := getattr(self, field_.name)) != field_.default
        )
        return f"Thresholds({', '.join(given)})"

    def many(self, inputs: int) -> int:
        """How many of `inputs` inputs count as much of a large change set."""
        return max(self.whole, inputs // self.layout_share)

    @property
    def layout_share(self) -> int:
        """One of this many values must be reached to justify building the layout of the graph."""
        return max(1, self.share // 4)


def _drawn(rng: RandomSource, lowest: Any, highest: Any, default: Any) -> Any:
    small = rng.random() if type(default) is float else min(max(rng.choice(_SMALL), lowest), highest)
    return rng.choice((lowest, highest, small, default))


@contextmanager
def forced(thresholds: Thresholds) -> Iterator[Thresholds]:
    """Use `thresholds` in this process inside the `with` block; for tests."""
    global now  # noqa: PLW0603 - the only variable, and the only place that replaces it
    before, now = now, thresholds
    try:
        yield thresholds
    finally:
        now = before


now: Thresholds = Thresholds()
