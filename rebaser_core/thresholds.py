"""Defines thresholds, which are sizes at which a program switches to another method of computing the same result.

Invariant: no result depends on a threshold. Tests can therefore set all thresholds to their lowest meaningful values
(every alternative method is always used), to their highest values (none is ever used), or to random values.

Code reads `now` when it chooses a method. In this process, `forced` replaces `now`. In processes that a test starts,
`rebaser.runtime.forced_thresholds` sets `now` from an environment variable.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, TypeVar

NEVER: Final = 1 << 40  # larger than any real size, but small enough that a sum of several such numbers fits in 64 bits
_SMALL: Final = (1, 2, 3, 5, 8, 20, 60, 200, 1000)


def _from(default: int, lowest: int = 0, highest: int = NEVER) -> Any:
    return field(default=default, metadata={"lowest": lowest, "highest": highest})


def _share(default: float, lowest: float = 0.0, highest: float = 1.0) -> Any:
    return field(default=default, metadata={"lowest": lowest, "highest": highest})


T = TypeVar("T")


class RandomSource(Protocol):
    """An object with the methods of `random.Random` that `Thresholds.drawn` needs."""

    def choice(self, seq: Sequence[T], /) -> T: ...
    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, repr=False)
class Thresholds:
    """A set of thresholds.

    Numbers of bytes refer to encoded data. The elements of a graph are its nodes and edges, that is, the values and
    their inputs. A divisor stands for a share; for instance, 32 means one in 32.
    """

    # -- planning an update ------------------------------------------------------------------------------------------

    packet_bytes: int = _from(8 * 1024 * 1024, 1)
    """Maximum bytes of a packet. Further values go into another packet or the next wave. A single value may be
    larger."""
    parallelism: int = _from(2, 1, 64)
    """Number of packets in a wave if there is enough work, and thus the number of tasks that run at the same time."""
    task_min_elements: int = _from(150_000, 1)
    """Minimum number of elements for each task after the first, because another task costs 30 to 45 ms."""
    interpreted_max: int = _from(300, -1)
    """Maximum number of values or inputs that Python loops process during planning. Compiled loops process more."""
    interpreted_max_during_start: int = _from(100_000, -1)
    """The value of `interpreted_max` while Spark starts, because loading or building compiled code would delay the
    start by seconds."""
    verify_edge_max_inputs: int = _from(16)
    """While edges of removed definitions remain in the graph, an edge is verified if its dependent has at most this
    many inputs. A dependent with more inputs is treated as reached without verification."""
    full_plan_min_values: int = _from(20_000)
    """Minimum number of values in a change set for a full plan, which covers the whole graph."""
    full_plan_reach_divisor: int = _from(32, 1)
    """A full plan is made if an update reaches at least one in this many values, and the layout of the graph is cached.
    If the layout first has to be built, the update must reach four times this share."""
    full_plan_max_python_share: float = _share(1 / 16)
    """Maximum share of the values of a full plan that Python computes. A full plan does not stop at values that do not
    change, so Python would compute more values than with packets."""
    full_plan_compute_all_min_share: float = _share(2 / 3, 0.0, 2.0)
    """A full plan computes all values if at least this share of them is reached and compiled code computes them."""
    full_plan_sample_nodes: int = _from(4096, 1)
    """Number of nodes in the sample from which the share that Python has to compute is estimated."""
    full_plan_max_text_bytes: int = _from(32 * 1024 * 1024)
    """Maximum bytes of texts, lists and maps among the inputs of a full plan."""
    structure_in_packet_max_bytes: int = _from(64 * 1024 * 1024)
    """Maximum bytes of the structure of a graph if it has to be sent in a packet, because no shared storage is
    available. With a larger structure, the update is planned in packets that each contain a part of the graph."""
    ids_as_text_min_values: int = _from(10_000, 1)
    """Minimum number of values in a full plan whose ids are also stored as a single text."""
    plan_on_loop_max_elements: int = _from(300)
    """Maximum number of elements of a change set whose updates are planned on the event loop, not in a thread."""
    plan_on_loop_max_text_chars: int = _from(1000)
    """Maximum length of the longest text in a change set whose updates are planned on the event loop, not in a
    thread."""
    results_on_loop_max_bytes: int = _from(64 * 1024)
    """Maximum bytes of results that are decoded on the event loop, not in a thread."""

    # -- computing an update -----------------------------------------------------------------------------------------

    kernel_load_min_elements: int = _from(200_000)
    """Minimum number of elements in a packet for which the compiled kernel is loaded, if it is not loaded yet."""
    kernel_call_min_elements: int = _from(400)
    """Minimum number of elements in a packet (inputs and values to compute) for which the compiled kernel is called. A
    formula is always translated for the kernel if it has at least this many inputs."""
    translate_min_nodes: int = _from(16)
    """Minimum number of nodes with the same formula for which the formula is translated for the compiled kernel."""
    group_min_values: int = _from(20, 1)
    """Minimum number of values with the same definition that are computed together, in one call."""
    group_max_inputs: int = _from(256, 0, 256)
    """Maximum number of inputs of a value that is computed together with others. It must not be higher than 256,
    because only the computation of a single value checks the total size of its inputs."""
    group_max_values: int = _from(1 << 15, 1)
    """Maximum number of values that are computed together, in one call."""
    group_retry_max_values: int = _from(256, 1)
    """Maximum number of values that are computed together in a second attempt, after a larger call failed."""
    kernel_backoff_below_nodes: int = _from(8)
    """If a call of the compiled kernel computes fewer nodes than this number, Python computes more nodes before the
    next call."""
    kernel_backoff_max_nodes: int = _from(1024, 1)
    """Maximum number of nodes that Python computes before the next call of the compiled kernel."""
    reorder_elements_per_stop: int = _from(1000)
    """A packet is reordered if the compiled kernel would otherwise stop, on average, at least once in this many
    elements."""
    result_bytes: int = _from(4 * 1024 * 1024, 1)
    """Minimum bytes of results that are returned in several parts."""

    # -- sending packets to Spark ------------------------------------------------------------------------------------

    file_transfer_min_bytes: int = _from(128 * 1024, 1)
    """Minimum bytes of a packet or of results that are passed in a file, if the server and the worker run on the same
    machine."""
    shared_job_max_bytes: int = _from(512 * 1024)
    """Maximum bytes of the packet, and of the results, of a call that shares a Spark job with other calls."""
    shared_job_max_calls: int = _from(256, 1)
    """Maximum number of calls in one Spark job."""
    local_relation_max_bytes: int = _from(512 * 1024, 0, 64 * 1024 * 1024)
    """Maximum bytes of rows that are sent inside the Spark plan of their job. Larger rows are first stored on the Spark
    server."""

    # -- requests and the log ----------------------------------------------------------------------------------------

    inline_max_bytes: int = _from(NEVER)
    """Maximum bytes of a message that contains its updates or results itself. A larger message refers to a blob that
    contains them. The limit is never more than half of the maximum payload of NATS."""
    inline_max_updates: int = _from(10_000)
    """Maximum number of updates or results that a commit contains itself. More are stored in a blob, because encoding
    them takes tens of milliseconds."""
    inline_table_max_rows: int = _from(1_000)
    """Maximum number of rows in a table of results that a commit contains itself. A larger table is stored in a blob,
    in columns."""
    blob_slice_max_items: int = _from(256, 1, 60_000)
    """Maximum number of updates or results of a blob that are encoded or decoded in one call."""
    overlay_merge_per_commit: int = _from(256, 1)
    """Number of values that each commit merges from the overlay into the columns, in addition to the number of values
    that it changes."""
    fold_step: int = _from(500, 1)
    """Number of edits that are checked or folded in one step. Between steps, other tasks run on the event loop."""
    overlay_merge_step: int = _from(500, 1)
    """Number of values of the overlay that are merged in one step, before a view is opened and after it is closed."""
    replay_min_bytes: int = _from(4 * 1024 * 1024)
    """A rebase always reads the target's commits if they have at most this many bytes, even if the target's state is
    smaller."""
    replay_max_bytes: int = _from(64 * 1024 * 1024)
    """Maximum bytes of the target's commits that a rebase reads. If there are more, the rebase compares the states of
    the branch and the target instead."""
    on_loop_max_bytes: int = _from(32 * 1024)
    """Maximum bytes of data that is processed on the event loop, not in a thread, if no other threshold applies."""
    updates_on_loop_max_bytes: int = _from(256 * 1024)
    """Maximum bytes of a blob of updates that is decoded on the event loop, not in a thread."""
    hash_on_loop_max_bytes: int = _from(256 * 1024)
    """Maximum bytes of a blob that is hashed on the event loop, not in a thread."""
    plain_request_max_updates: int = _from(16)
    """Maximum number of values that a request sets if it is read by the short way."""
    round_min_owners: int = _from(2, 1)
    """Minimum number of owners that got requests in one turn of the event loop and prepare their commits together."""
    purge_min_requests: int = _from(32, 1)
    """Minimum number of decided requests, all older than the others in their stream, that are deleted with one purge
    instead of one by one."""

    # -- the state in columns ----------------------------------------------------------------------------------------

    vectorized_write_min_inputs: int = _from(24, 1)
    """Minimum number of inputs of a definition that is written with array operations instead of a loop."""
    dependents_rebuild_min_edges: int = _from(4_096)
    """The index of dependents is built again when the number of edges that were added, or whose definition was removed,
    exceeds both this number and a quarter of all edges."""
    dependents_drop_min_edges: int = _from(1_048_576)
    """The index of dependents is dropped when the number of edges that were added since it was built exceeds both this
    number and twice the number of edges from which it was built. The next lookup builds the index again."""
    reach_at_once_min_share: float = _share(1 / 32, 0.0, 2.0)
    """If at least this share of the rows are roots, all values that depend on them are found together, with array
    operations. This may have to build the index of dependents first."""
    compact_min_dead_inputs: int = _from(65_536)
    """The array of inputs is compacted when the number of inputs of removed definitions exceeds both this number and
    half of all inputs."""
    match_cache_max_rows: int = _from(16_000_000)
    """Maximum number of rows in the cached matches of all patterns together."""
    match_cache_max_changes: int = _from(64)
    """The cached matches of a pattern are dropped when the number of values added to or removed from them exceeds this
    number plus a quarter of the matches."""
    id_tree_max_partial_scans: int = _from(3)
    """Maximum number of scans of all ids that add only ids with certain first segments to the tree of ids. The next
    scan adds the remaining ids."""
    pattern_links_max_excess: int = _from(65_536)
    """The links from rows to patterns are built again when the number of unused links, or of all links, exceeds twice
    the number of links in use by more than this number."""

    # -- checkpoints -------------------------------------------------------------------------------------------------

    part_rows: int = _from(1_048_576, 1)
    """Maximum number of rows in a checkpoint file."""
    part_bytes: int = _from(64 * 1024 * 1024)
    """Size in bytes from which a checkpoint file is full, so that the next batch is written to another file."""
    batch_rows: int = _from(65_536, 1)
    """Maximum number of rows in a batch. Processing this many rows takes tens of milliseconds."""
    batch_bytes: int = _from(16 * 1024 * 1024)
    """Maximum bytes of texts in a batch. A batch of one row may have more."""
    batch_inputs: int = _from(4_000_000)
    """Maximum number of inputs in a batch. A batch of one row may have more."""
    batch_outcomes: int = _from(2_000, 1)
    """Maximum number of outcomes of requests in one batch."""
    copy_step_objects: int = _from(10_000, 1)
    """Number of objects that are copied in one step, during which nothing else runs."""
    uncompressed_max_rows: int = _from(1_000)
    """Maximum number of rows in a checkpoint file that is not compressed."""
    copy_id_list_divisor: int = _from(10)
    """If fewer than one in this many rows are written, their ids are copied one by one. Otherwise the whole list of ids
    is copied."""
    delta_changes_divisor: int = _from(2)
    """If more than one in this many values have changed, and more than one in this many values and remembered outcomes
    are new, the checkpoint is a new base instead of a delta. 0 turns this rule off."""
    deltas_bytes_factor: int = _from(2)
    """If the size of all deltas, multiplied by this factor, exceeds the size of the base, the next checkpoint is a new
    base. 0 turns this rule off."""
    max_deltas: int = _from(64)
    """Maximum number of deltas after a base. Each delta adds a few milliseconds to the loading time."""
    vectorized_count_min_rows: int = _from(100_000, 1)
    """Minimum number of rows whose occurrences are counted with `numpy.bincount`, which processes whole arrays."""

    # -- branches ----------------------------------------------------------------------------------------------------

    inline_tail_max_bytes: int = _from(16 * 1024)
    """Maximum bytes of copied commits that a `create` commit contains itself. More are stored in a blob, which is
    shared by all change sets that are created from the same position."""
    tail_max_bytes: int = _from(1024 * 1024)
    """Maximum bytes of commits that are copied for a `create` commit. If the parent has more commits after its
    checkpoint, a checkpoint of its state is stored for the new change set instead."""
    tail_cache_max_bytes: int = _from(16 * 1024 * 1024)
    """Maximum estimated memory (bytes) of the copied commits that a server keeps in order to create further change sets
    from the same position."""

    @classmethod
    def lowest(cls) -> "Thresholds":
        """Return the lowest thresholds. Even the smallest input exceeds them, so every alternative method is always
        used."""
        return cls(**{field_.name: field_.metadata["lowest"] for field_ in fields(cls)})

    @classmethod
    def highest(cls) -> "Thresholds":
        """Return the highest thresholds. No input exceeds them, so no alternative method is ever used."""
        return cls(**{field_.name: field_.metadata["highest"] for field_ in fields(cls)})

    @classmethod
    def drawn(cls, rng: RandomSource) -> "Thresholds":
        """Return random thresholds. Each of them has its lowest, highest or default value, or a small value."""
        return cls(**{field_.name: _drawn(rng, **field_.metadata, default=field_.default) for field_ in fields(cls)})

    def __repr__(self) -> str:
        """Return the thresholds that differ from their defaults, as text."""
        given = (
            f"{field_.name}={value}"
            for field_ in fields(self)
            if (value := getattr(self, field_.name)) != field_.default
        )
        return f"Thresholds({', '.join(given)})"

    def full_plan_min_reached_inputs(self, inputs: int) -> int:
        """Return the number of inputs that an update must reach for a full plan, in a change set with `inputs`
        inputs."""
        return max(self.full_plan_min_values, inputs // self.layout_reach_divisor)

    @property
    def layout_reach_divisor(self) -> int:
        """The divisor that replaces `full_plan_reach_divisor` if the layout of the graph is not cached and would have
        to be built for a full plan."""
        return max(1, self.full_plan_reach_divisor // 4)


def _drawn(rng: RandomSource, lowest: Any, highest: Any, default: Any) -> Any:
    small = rng.random() if type(default) is float else min(max(rng.choice(_SMALL), lowest), highest)
    return rng.choice((lowest, highest, small, default))


@contextmanager
def forced(thresholds: Thresholds) -> Iterator[Thresholds]:
    """Replace `now` with `thresholds` in the whole process for the duration of a `with` block. This is only for
    tests."""
    global now  # noqa: PLW0603 - the only variable of this module
    before, now = now, thresholds
    try:
        yield thresholds
    finally:
        now = before


now: Thresholds = Thresholds()
