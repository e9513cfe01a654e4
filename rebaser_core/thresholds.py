"""Thresholds: sizes at which a program switches to another method of computing the same result.

Invariant: no result depends on a threshold. So tests can force thresholds: all to their lowest meaningful values, so
that each alternative method is used at once; all to their highest, so that no alternative method is used; or each to a
random value.

Code reads `now` at the moment when it chooses a method. `forced` replaces `now` in this process;
`rebaser.runtime.forced_thresholds` replaces it from an environment variable, for processes that a test starts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, TypeVar

NEVER: Final = 1 << 40  # larger than every real size; sums of a few of these still fit in 64 bits
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
    """Sizes at which a program switches to another method.

    Bytes are those of the encoded form. Elements of a graph are its nodes and edges, that is, values and their inputs.
    A divisor stands for a share: 32 means one in 32.
    """

    # -- planning an update ------------------------------------------------------------------------------------------

    packet_bytes: int = _from(8 * 1024 * 1024, 1)
    """Maximum bytes of a packet. Further values go into another packet or the next wave; a single value always fits."""
    parallelism: int = _from(2, 1, 64)
    """Number of packets in a wave if there is enough work; that many tasks run at the same time."""
    task_min_elements: int = _from(150_000, 1)
    """Number of elements per additional task: a second task costs 30 to 45 ms before it helps."""
    interpreted_max: int = _from(300, -1)
    """Maximum number of positions that Python plans; compiled code plans more than that."""
    interpreted_max_during_start: int = _from(100_000, -1)
    """The value of `interpreted_max` while Spark starts: loading or building compiled code would delay the start by
    seconds."""
    verify_edge_max_inputs: int = _from(16)
    """While some edges are dead, an edge is verified if the value it leads to has at most this many inputs. A value
    with more inputs counts as reached."""
    full_plan_min_values: int = _from(20_000)
    """Minimum values of a change set for a full plan, that is, a sweep of its full graph."""
    full_plan_reach_divisor: int = _from(32, 1)
    """A full plan is made if an update reaches at least one in this many values and the layout of the graph is cached.
    If the layout must be built, the update has to reach four times that share."""
    full_plan_max_python_share: float = _share(1 / 16)
    """Maximum share of the values of a full plan that Python computes. A full plan does not stop where nothing
    changes, so Python would compute more than with packets."""
    full_plan_compute_all_min_share: float = _share(2 / 3, 0.0, 2.0)
    """Minimum share of reached values from which a full plan computes all values, if compiled code computes them."""
    full_plan_sample_nodes: int = _from(4096, 1)
    """Nodes sampled to estimate how much of a full plan Python has to compute."""
    full_plan_max_text_bytes: int = _from(32 * 1024 * 1024)
    """Maximum bytes of texts, lists and maps among the inputs of a full plan."""
    structure_in_packet_max_bytes: int = _from(64 * 1024 * 1024)
    """Maximum bytes of a structure that is sent in its packet because it can be stored nowhere else. If the structure
    is larger, the update is planned in packets of parts."""
    ids_as_text_min_values: int = _from(10_000, 1)
    """If a full plan computes at least this many values, their ids are also kept as text."""
    plan_on_loop_max_elements: int = _from(300)
    """Maximum elements of a change set whose updates are planned on the event loop instead of in a thread."""
    plan_on_loop_max_text_chars: int = _from(1000)
    """Maximum characters of the longest text in a change set whose updates are planned on the event loop."""
    results_on_loop_max_bytes: int = _from(64 * 1024)
    """Maximum bytes of results that are decoded on the event loop instead of in a thread."""

    # -- computing an update -----------------------------------------------------------------------------------------

    kernel_load_min_elements: int = _from(200_000)
    """Minimum number of elements in a packet for loading the compiled kernel."""
    kernel_call_min_elements: int = _from(400)
    """Minimum number of elements in a packet (inputs and values to compute) for calling the compiled kernel. A formula
    that has at least this many inputs by itself is always translated for the kernel."""
    translate_min_nodes: int = _from(16)
    """Minimum number of nodes for translating a formula to the compiled kernel."""
    group_min_values: int = _from(20, 1)
    """Minimum values with the same definition for computing all of them in one call."""
    group_max_inputs: int = _from(256, 0, 256)
    """Maximum inputs of a value that is computed in such a group. This threshold is never higher than 256: more inputs
    may be too large in total, and only the evaluation of a single value checks that."""
    group_max_values: int = _from(1 << 15, 1)
    """Maximum values in one call for a group."""
    group_retry_max_values: int = _from(256, 1)
    """Maximum values in one call for a group when the group is retried because a larger call failed."""
    kernel_backoff_below_nodes: int = _from(8)
    """If a call of the compiled kernel computes fewer nodes than this, Python computes more nodes before the next
    call."""
    kernel_backoff_max_nodes: int = _from(1024, 1)
    """Maximum nodes that Python computes before the next call of the compiled kernel."""
    reorder_elements_per_stop: int = _from(1000)
    """A packet is reordered if the compiled kernel would stop at least once in this many elements, on average."""
    result_bytes: int = _from(4 * 1024 * 1024, 1)
    """Bytes from which results are returned in several parts."""

    # -- sending packets to Spark ------------------------------------------------------------------------------------

    file_transfer_min_bytes: int = _from(128 * 1024, 1)
    """Bytes from which a packet or its results are passed in a file, if the server and the worker share a machine."""
    shared_job_max_bytes: int = _from(512 * 1024)
    """Maximum bytes of the packet, and of the results, of a call that may share a job."""
    shared_job_max_calls: int = _from(256, 1)
    """Maximum calls that share a job."""
    local_relation_max_bytes: int = _from(512 * 1024, 0, 64 * 1024 * 1024)
    """Maximum bytes of rows that are sent within the Spark plan of their job; the Spark server stores larger ones."""

    # -- requests and the log ----------------------------------------------------------------------------------------

    inline_max_bytes: int = _from(NEVER)
    """Maximum bytes of a message whose updates or results are inline, not in a blob. The limit is never more than half
    of the maximum payload of NATS."""
    inline_max_updates: int = _from(10_000)
    """Maximum updates or results that are inline in a commit: encoding more takes tens of milliseconds."""
    inline_table_max_rows: int = _from(1_000)
    """Maximum rows of a table of results that is inline. Larger tables go to a blob, still in columns."""
    blob_slice_max_items: int = _from(256, 1, 60_000)
    """Maximum updates or results of a blob that are encoded or decoded in one call."""
    overlay_merge_per_commit: int = _from(256, 1)
    """Values of the overlay that each commit merges into the columns, in addition to the values it changes itself."""
    fold_step: int = _from(500, 1)
    """Edits that are checked or folded in one step; other tasks on the event loop get their turns between steps."""
    overlay_merge_step: int = _from(500, 1)
    """Values of the overlay that are merged in one step before and after a view."""
    replay_min_bytes: int = _from(4 * 1024 * 1024)
    """Bytes of commits of a target up to which a rebase reads them even if the state of the target is smaller."""
    replay_max_bytes: int = _from(64 * 1024 * 1024)
    """Maximum bytes of commits of a target that a rebase reads. If there are more, it compares states instead."""
    on_loop_max_bytes: int = _from(32 * 1024)
    """Maximum bytes of work on the event loop, instead of in a thread, that has no threshold of its own."""
    updates_on_loop_max_bytes: int = _from(256 * 1024)
    """Maximum bytes of a blob of updates that is decoded on the event loop instead of in a thread."""
    hash_on_loop_max_bytes: int = _from(256 * 1024)
    """Maximum bytes of a blob that is hashed on the event loop instead of in a thread."""

    # -- the state in columns ----------------------------------------------------------------------------------------

    vectorized_write_min_inputs: int = _from(24, 1)
    """Minimum inputs of a definition for writing it with array operations instead of a loop."""
    dependents_rebuild_min_edges: int = _from(4_096)
    """The dependents are rebuilt once the added and dead edges together exceed both this number and a quarter of all
    edges."""
    dependents_drop_min_edges: int = _from(1_048_576)
    """The dependents are dropped if the edges added since they were built exceed both this number and twice the edges
    they were built from. The next lookup builds them again."""
    compact_min_dead_inputs: int = _from(65_536)
    """The inputs are compacted once the inputs of removed definitions exceed both this number and half of all."""
    match_cache_max_rows: int = _from(16_000_000)
    """Maximum rows of matches that are cached, over all patterns."""
    match_cache_max_changes: int = _from(64)
    """The cached matches of a pattern are dropped once the number of values added or removed exceeds this number plus a
    quarter of the matches."""
    id_tree_max_partial_scans: int = _from(3)
    """Maximum scans that add only ids with certain first segments to the id tree; the next scan adds all ids."""
    pattern_links_max_excess: int = _from(65_536)
    """Links from rows to patterns are rebuilt once the unused ones exceed those in use by more than this number."""

    # -- checkpoints -------------------------------------------------------------------------------------------------

    part_rows: int = _from(1_048_576, 1)
    """Maximum rows of a file of a checkpoint."""
    part_bytes: int = _from(64 * 1024 * 1024)
    """Once a file of a checkpoint has this many bytes, the next batch goes into another file."""
    batch_rows: int = _from(65_536, 1)
    """Maximum rows of a batch: tens of milliseconds of work."""
    batch_bytes: int = _from(16 * 1024 * 1024)
    """Maximum bytes of texts in a batch of more than one row."""
    batch_inputs: int = _from(4_000_000)
    """Maximum inputs in a batch of more than one row."""
    batch_outcomes: int = _from(2_000, 1)
    """Maximum outcomes of requests in one batch."""
    copy_step_objects: int = _from(10_000, 1)
    """Number of objects that are copied at a time; nothing else runs meanwhile."""
    uncompressed_max_rows: int = _from(1_000)
    """Maximum rows of a part that is not compressed."""
    copy_id_list_divisor: int = _from(10)
    """If fewer than one in this many rows is written, ids are copied one by one; otherwise the whole list is copied."""
    delta_changes_divisor: int = _from(2)
    """If more than one in this many values changed, the checkpoint is a new base instead of a delta; 0: never for this
    reason."""
    deltas_bytes_factor: int = _from(2)
    """If the bytes of all deltas, times this factor, exceed those of the base, the next checkpoint is a new base.
    0: never for this reason."""
    max_deltas: int = _from(64)
    """Maximum deltas of one base; each adds a few milliseconds to a load."""
    vectorized_count_min_rows: int = _from(100_000, 1)
    """Number of rows from which the inputs of all rows are counted at once instead of one by one."""

    # -- branches ----------------------------------------------------------------------------------------------------

    inline_tail_max_bytes: int = _from(16 * 1024)
    """Maximum bytes of commits that a `create` commit copies into its message. More bytes go to a blob, which all
    change sets created from the same position share."""
    tail_max_bytes: int = _from(1024 * 1024)
    """Maximum bytes of commits that a `create` commit copies, to its message or a blob. If there are more after the
    checkpoint of the parent, the new change set gets a checkpoint of the parent's state instead."""
    tail_cache_max_bytes: int = _from(16 * 1024 * 1024)
    """Estimated bytes of memory for the copied commits that a server keeps for further change sets."""

    @classmethod
    def lowest(cls) -> "Thresholds":
        """Return thresholds that are exceeded by the smallest input, so that each alternative method is always used."""
        return cls(**{field_.name: field_.metadata["lowest"] for field_ in fields(cls)})

    @classmethod
    def highest(cls) -> "Thresholds":
        """Return thresholds that no input reaches, so that no alternative method is ever used."""
        return cls(**{field_.name: field_.metadata["highest"] for field_ in fields(cls)})

    @classmethod
    def drawn(cls, rng: RandomSource) -> "Thresholds":
        """Return thresholds drawn independently: each is the lowest, the highest, a small or the default value."""
        return cls(**{field_.name: _drawn(rng, **field_.metadata, default=field_.default) for field_ in fields(cls)})

    def __repr__(self) -> str:
        """Return the thresholds that differ from their defaults."""
        given = (
            f"{field_.name}={value}"
            for field_ in fields(self)
            if (value := getattr(self, field_.name)) != field_.default
        )
        return f"Thresholds({', '.join(given)})"

    def full_plan_min_reached_inputs(self, inputs: int) -> int:
        """Return how many of the `inputs` of a change set an update must reach for a full plan."""
        return max(self.full_plan_min_values, inputs // self.layout_reach_divisor)

    @property
    def layout_reach_divisor(self) -> int:
        """The layout of the graph is built for a full plan if an update reaches at least one in this many values."""
        return max(1, self.full_plan_reach_divisor // 4)


def _drawn(rng: RandomSource, lowest: Any, highest: Any, default: Any) -> Any:
    small = rng.random() if type(default) is float else min(max(rng.choice(_SMALL), lowest), highest)
    return rng.choice((lowest, highest, small, default))


@contextmanager
def forced(thresholds: Thresholds) -> Iterator[Thresholds]:
    """Use `thresholds` in this process inside the `with` block; for tests."""
    global now  # noqa: PLW0603 - the only variable of this module
    before, now = now, thresholds
    try:
        yield thresholds
    finally:
        now = before


now: Thresholds = Thresholds()
