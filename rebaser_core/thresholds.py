"""Thresholds: sizes at which a program switches to another method of computing the same result.

Invariant: no result depends on a threshold. So tests can force them: all to their lowest meaningful value, so that
every other method is used at once; all to their highest, so that it is never used; or each to a random value.

Code reads `now` at the moment when it chooses a method. `forced` replaces `now` in this process;
`rebaser.runtime.forced_thresholds` replaces it from an environment variable, for processes that a test starts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, TypeVar

NEVER: Final = 1 << 40  # larger than every real size; twice this number, or a sum of a few, still fits in 64 bits
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
    """Sizes at which another method begins. Bytes are those of the encoded form unless a docstring says otherwise."""

    # -- planning an update ------------------------------------------------------------------------------------------

    packet_bytes: int = _from(8 * 1024 * 1024, 1)
    """Maximum bytes of a packet. Other values go into another packet or the next wave; a single value always fits."""
    parallelism: int = _from(2, 1, 64)
    """Number of packets in a wave if there is enough work; that many tasks run at the same time."""
    task_work: int = _from(150_000, 1)
    """Minimum nodes and edges of a task of their own: a second task costs 30 to 45 ms before it helps."""
    interpreted_max: int = _from(300, -1)
    """Maximum number of positions that Python plans; compiled code plans more than that."""
    interpreted_max_cold: int = _from(100_000, -1)
    """The same while Spark starts: loading or creating compiled code then would delay the start by seconds."""
    checked: int = _from(16)
    """While some edges are dead, an edge is verified if the value it leads to has at most this many inputs. A value
    with more inputs counts as reached."""
    whole: int = _from(20_000)
    """Minimum values of a change set for planning over its full graph, if an update reaches much of it."""
    share: int = _from(32, 1)
    """An update reaches much of a change set if it reaches one in this many values and the layout of the graph is
    cached. If the layout must be built, it has to reach four times that share."""
    slow: float = _share(1 / 16)
    """Maximum share of the computed values that Python computes in a sweep of the full graph. Such a sweep does not
    stop where nothing changes."""
    whole_all: float = _share(2 / 3, 0.0, 2.0)
    """If at least this share of the values is reached, a sweep of the full graph computes all values, provided that
    compiled code computes them."""
    whole_sample: int = _from(4096, 1)
    """Nodes sampled to estimate how much of a sweep Python has to compute."""
    whole_texts: int = _from(32 * 1024 * 1024)
    """Maximum bytes of texts, lists and maps among the inputs of a sweep of the full graph."""
    brought_bytes: int = _from(64 * 1024 * 1024)
    """Maximum bytes of a structure that is sent in its packet because it can be stored nowhere else. If the structure
    is larger, the update is planned in packets of parts."""
    named: int = _from(10_000, 1)
    """If a sweep computes at least this many values, their ids are also kept as text."""
    little: int = _from(300)
    """Maximum values and edges of a change set whose updates are planned on the event loop instead of in a thread."""
    little_text: int = _from(1000)
    """Maximum characters of the longest text in such a change set."""
    little_result: int = _from(64 * 1024)
    """Maximum bytes of results that are decoded on the event loop."""

    # -- computing it ------------------------------------------------------------------------------------------------

    cold: int = _from(200_000)
    """Minimum nodes and inputs of a packet for loading compiled code."""
    warm: int = _from(400)
    """Minimum nodes and inputs of a packet for calling compiled code; minimum inputs for translating a formula."""
    formula: int = _from(16)
    """Minimum nodes for translating a formula."""
    group: int = _from(20, 1)
    """Minimum values with the same definition for computing all of them in one call."""
    group_inputs: int = _from(256, 0, 256)
    """Maximum inputs of a value that is computed in such a group. More inputs may be too large together, which only the
    evaluation of a single value checks. So this threshold is never higher than 256."""
    group_most: int = _from(1 << 15, 1)
    """Maximum values in one call for a group."""
    group_again: int = _from(256, 1)
    """Maximum values in one call for a group after a larger call failed."""
    stretch: int = _from(8)
    """Minimum nodes that a call of compiled code should compute. After a call computes fewer, calls become rarer."""
    stretch_longest: int = _from(1024, 1)
    """Maximum nodes that Python computes before the next such call."""
    reorder: int = _from(1000)
    """A packet is reordered if compiled code would stop at least once in this many nodes and inputs, on average."""
    result_bytes: int = _from(4 * 1024 * 1024, 1)
    """Bytes from which results are returned in several parts."""

    # -- getting it to Spark -----------------------------------------------------------------------------------------

    parcel: int = _from(128 * 1024, 1)
    """Bytes from which a packet or its results are passed in a file, if the server and the worker share a machine."""
    lane: int = _from(512 * 1024)
    """Maximum bytes of packets, or of results, of a small call, which may share a job."""
    lane_calls: int = _from(256, 1)
    """Maximum calls that share a job."""
    relation: int = _from(512 * 1024, 0, 64 * 1024 * 1024)
    """Maximum bytes of rows that are sent within the Spark plan of their job; the Spark server stores larger ones."""

    # -- requests and the log ----------------------------------------------------------------------------------------

    inline: int = _from(NEVER)
    """Maximum bytes of a message whose updates or results are inline, not in a blob. The limit is never more than half
    of the maximum payload of NATS."""
    inline_updates: int = _from(10_000)
    """Maximum updates or results that are inline in a commit: encoding more takes tens of milliseconds."""
    inline_table: int = _from(1_000)
    """Maximum results that an inline table may hold. Larger tables go to a blob, still in columns."""
    fold: int = _from(256, 1)
    """Values of the overlay that each fold merges into the columns, in addition to the values it changes itself."""
    settle: int = _from(500, 1)
    """Values of the overlay that are merged in one step before and after a view."""
    here: int = _from(32 * 1024)
    """Maximum bytes that are processed on the event loop instead of in a thread."""
    decode_here: int = _from(256 * 1024)
    """Maximum bytes of a blob of updates that is decoded on the event loop."""
    hash_here: int = _from(256 * 1024)
    """Maximum bytes of a blob that is hashed on the event loop."""

    # -- the state in columns ----------------------------------------------------------------------------------------

    arrays: int = _from(24, 1)
    """Minimum inputs of a definition that is written by array operations instead of a loop."""
    edges_worn: int = _from(4_096)
    """The dependents are rebuilt once added and dead edges exceed both this number and a quarter of all."""
    edges_behind: int = _from(1_048_576)
    """The dependents are dropped until the next lookup once the added edges exceed both this number and twice the
    number built."""
    refs_lost: int = _from(65_536)
    """The inputs are compacted once the inputs of removed definitions exceed both this number and half of all."""
    matches_kept: int = _from(16_000_000)
    """Maximum rows of matches that are cached, over all patterns."""
    matches_noted: int = _from(64)
    """The cached matches of a pattern are dropped once more values were added or removed than the sum of this number
    and a quarter of the matches."""
    heads: int = _from(3)
    """Number of scans of all ids for some first segments; the next scan adds all ids to the id tree."""
    ways_slack: int = _from(65_536)
    """Links from rows to patterns are rebuilt once the unused ones exceed those in use by more than this number."""

    # -- checkpoints -------------------------------------------------------------------------------------------------

    part_rows: int = _from(1_048_576, 1)
    """Maximum rows of a file of a checkpoint."""
    part_bytes: int = _from(64 * 1024 * 1024)
    """Bytes of a file of a checkpoint from which the next batch goes into another file."""
    batch_rows: int = _from(65_536, 1)
    """Maximum rows of a batch: tens of milliseconds of work."""
    batch_bytes: int = _from(16 * 1024 * 1024)
    """Maximum bytes of texts in a batch of more than one row."""
    batch_inputs: int = _from(4_000_000)
    """Maximum inputs in a batch of more than one row."""
    batch_outcomes: int = _from(2_000, 1)
    """Maximum outcomes of requests in one batch."""
    copied: int = _from(10_000, 1)
    """Number of objects that are copied at a time; nothing else runs meanwhile."""
    compressed: int = _from(1_000)
    """Maximum rows of a part that is not compressed."""
    names_share: int = _from(10)
    """If fewer than one in this many rows is written, ids are copied one by one; otherwise the whole list is copied."""
    delta_share: int = _from(2)
    """If more than one in this many values changed, the checkpoint is a new base instead of a delta; 0: never for this
    reason."""
    delta_bytes: int = _from(2)
    """If this many times the bytes of all deltas exceed those of the base, the next checkpoint is a new base; 0: never
    for this reason."""
    deltas: int = _from(64)
    """Maximum deltas of one base; each adds a few milliseconds to a load."""
    counted: int = _from(100_000, 1)
    """Number of rows from which inputs are counted over all rows at once instead of one by one."""

    @classmethod
    def lowest(cls) -> "Thresholds":
        """Thresholds at which every other method is used at once."""
        return cls(**{field_.name: field_.metadata["lowest"] for field_ in fields(cls)})

    @classmethod
    def highest(cls) -> "Thresholds":
        """Thresholds at which no other method is ever used."""
        return cls(**{field_.name: field_.metadata["highest"] for field_ in fields(cls)})

    @classmethod
    def drawn(cls, rng: RandomSource) -> "Thresholds":
        """Thresholds drawn independently: each is the lowest, the highest, a small or the default value."""
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
        """How many inputs an update must reach, of `inputs` in all, to reach much of a large change set."""
        return max(self.whole, inputs // self.layout_share)

    @property
    def layout_share(self) -> int:
        """The layout of the graph is built if an update reaches at least one in this many values."""
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
