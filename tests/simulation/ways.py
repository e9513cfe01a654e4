"""Counts how often each of several ways of the product to the same result was taken.

Invariant: the counts come from outside, from wrappers around functions of the product. A wrapped function either runs
only on one way, or its arguments and result show which way it was. Every way that a threshold chooses is listed here or
in `ELSEWHERE`.
"""

import functools
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rebaser_core import thresholds
from rebaser_core.state.computed_table import ComputedTable

Taken = Callable[[Any, Any], Any]  # from the arguments and the result: whether the way was taken


def _always(_: Any, __: Any) -> bool:
    return True


@dataclass(frozen=True)
class Way:
    """A way. It counts as taken when `function` ("module:name") has run and `when` returns true for its arguments and
    its result."""

    name: str
    function: str
    when: Taken = _always


def _now() -> Any:
    return thresholds.now


PLAN, WHOLE, RUN = "rebaser.dvu.planning.packet_plan:", "rebaser.dvu.planning.full_plan:", "rebaser.dvu.update:"
LOG, CORE = "rebaser.change_set.log.commit_log:", "rebaser_core."
WAYS = [
    # -- planning
    Way("planned on the loop", f"{RUN}_run", lambda given, _: given[1]),
    Way("planned in a thread", f"{RUN}_run", lambda given, _: not given[1]),
    Way("a wave of one packet", f"{PLAN}PacketPlan._fill_wave", lambda _, found: len(found) == 1),
    Way("a wave of several packets", f"{PLAN}PacketPlan._fill_wave", lambda _, found: len(found) > 1),
    Way(
        "a later wave",
        f"{PLAN}PacketPlan._fill_wave",
        lambda given, found: found and given[0]._last_number > len(found),
    ),
    Way("planned by Python", "rebaser.dvu.planning.loop_loader:loops_for", lambda given, _: given[0] <= given[1]),
    Way("planned by compiled code", "rebaser.dvu.planning.loop_loader:loops_for", lambda given, _: given[0] > given[1]),
    Way(
        "ways back checked",
        "rebaser.dvu.planning.subgraph:reach",
        lambda given, _: given[0].columns.edges.dead_edges and given[2].verify_edge_max_inputs,
    ),
    Way("swept as a whole", f"{WHOLE}FullGraphPlan.next_wave", lambda _, found: found),
    Way("a sweep of all", f"{WHOLE}FullGraphPlan.next_wave", lambda given, found: found and given[0]._nodes is None),
    Way(
        "a sweep of what is reached",
        f"{WHOLE}FullGraphPlan.next_wave",
        lambda given, found: found and given[0]._nodes is not None,
    ),
    Way("no sweep after all", f"{WHOLE}plan_full_graph", lambda _, found: found is None),
    Way(
        "a structure that workers have",
        f"{WHOLE}FullGraphPlan.next_wave",
        lambda given, found: found and given[0]._delivery == 0,
    ),
    Way(
        "a structure that goes along",
        f"{WHOLE}FullGraphPlan.next_wave",
        lambda given, found: found and given[0]._delivery in (1, 3),
    ),
    Way("a structure that is shared", f"{WHOLE}FullGraphPlan.mark_shared"),
    Way("a structure that is missing", "rebaser.dvu.wire.packet:Results.encode", lambda given, _: given[0].missing),
    Way("a structure too large to go along", f"{RUN}_start", lambda given, _: len(given) > 1),
    Way("ids as text", "rebaser.dvu.planning.layout:TextRowIds.lines"),
    Way("results in columns, some of them edited", f"{CORE}state.computed_table:ComputedTable.filter"),
    # -- computing
    Way("computed by compiled code", "rebaser.dvu.compiled.linker:LinkedPrograms.sweep"),
    Way("computed by Python", "rebaser.dvu.worker.evaluator:Evaluator._compute"),
    Way("computed in another order", "rebaser.dvu.compiled.linker:phase_order"),
    Way("many computed by one call", "rebaser.dvu.worker.batching:_call"),
    Way("results in one part", "rebaser.dvu.worker.evaluate:evaluate_packet", lambda _, found: len(found) == 1),
    Way("results in several parts", "rebaser.dvu.worker.evaluate:evaluate_packet", lambda _, found: len(found) > 1),
    # -- requests and the log
    Way("a request in a blob", "rebaser_client.requests.sender:encode_updates_blob"),
    Way(
        "requests purged",
        "rebaser_client.jetstream.api:JetStreamApi.purge",
        lambda given, _: given[1].endswith("REBASER_REQUESTS"),
    ),
    Way("a commit with its delta", f"{LOG}encode_commit", lambda given, _: given[0].delta),
    Way("a commit with a table", f"{LOG}encode_commit", lambda given, _: isinstance(given[0].delta, ComputedTable)),
    Way(
        "a delta in a blob",
        "rebaser.change_set.log.commit_parts:encode_delta",
        lambda given, _: not isinstance(given[0], ComputedTable),
    ),
    Way(
        "a table in a blob",
        "rebaser.change_set.log.commit_parts:encode_delta",
        lambda given, _: isinstance(given[0], ComputedTable),
    ),
    Way(
        "a blob decoded here",
        "rebaser.change_set.readers.request_reader:decode_updates_blob",
        lambda given, _: len(given[0]) < _now().updates_on_loop_max_bytes,
    ),
    Way(
        "a blob decoded in a thread",
        "rebaser.change_set.readers.request_reader:decode_updates_blob",
        lambda given, _: len(given[0]) >= _now().updates_on_loop_max_bytes,
    ),
    Way(
        "a blob hashed here",
        "rebaser_client.blobs.nats:_address_of",
        lambda given, _: len(given[0]) <= _now().hash_on_loop_max_bytes,
    ),
    Way(
        "a blob hashed in a thread",
        "rebaser_client.blobs.nats:_address_of",
        lambda given, _: len(given[0]) > _now().hash_on_loop_max_bytes,
    ),
    Way(
        "worked here", "rebaser_client.cooperative:run_offloaded", lambda given, _: given[0] <= _now().on_loop_max_bytes
    ),
    Way(
        "worked in a thread",
        "rebaser_client.cooperative:run_offloaded",
        lambda given, _: given[0] > _now().on_loop_max_bytes,
    ),
    Way("worked in, not all at once", f"{CORE}state.overlay:Cells.merge_overlay", lambda _, more: more),
    # -- the state
    Way(
        "a definition by arrays",
        f"{CORE}state.dependents:Edges.add",
        lambda given, _: len(given[2]) >= _now().vectorized_write_min_inputs,
    ),
    Way(
        "a definition by a loop",
        f"{CORE}state.dependents:Edges.add",
        lambda given, _: 0 < len(given[2]) < _now().vectorized_write_min_inputs,
    ),
    Way("the way back built anew", f"{CORE}state.dependents:Edges.build"),
    Way("the way back forgotten", f"{CORE}state.dependents:Edges.add", lambda given, _: given[0].stale),
    Way("a pattern looked up", f"{CORE}state.patterns.matches:PatternMatches._look_up"),
    Way("what a pattern matched brought up to date", f"{CORE}state.patterns.matches:_with_changes"),
    Way("ids of some heads", f"{CORE}state.patterns.id_tree:IdTree.cover", lambda given, _: given[0]._heads),
    Way("ids of all heads", f"{CORE}state.patterns.id_tree:IdTree.cover", lambda given, _: given[0]._heads is None),
    # -- deletion
    Way("a change set deleted", "rebaser.change_set.log.tombstones:store_emptied"),
    # -- checkpoints
    Way("a base", f"{CORE}checkpoint.writer:CheckpointDraft.write", lambda given, _: given[0].is_base),
    Way("a delta", f"{CORE}checkpoint.writer:CheckpointDraft.write", lambda given, _: not given[0].is_base),
    Way(
        "a checkpoint of one file",
        f"{CORE}checkpoint.writer:CheckpointDraft.write",
        lambda _, found: len(found.parts) == 1,
    ),
    Way(
        "a checkpoint of several files",
        f"{CORE}checkpoint.writer:CheckpointDraft.write",
        lambda _, found: len(found.parts) > 1,
    ),
    Way("a later batch", f"{CORE}checkpoint.part_rows:PartRows.batch", lambda given, _: given[1] > 0),
    Way("a batch cut for its size", f"{CORE}checkpoint.part_rows:PartRows._cells", lambda _, found: found is None),
    Way(
        "a part compressed",
        f"{CORE}checkpoint.writer:_File.__init__",
        lambda given, _: given[2].count > _now().uncompressed_max_rows,
    ),
    Way(
        "a part not compressed",
        f"{CORE}checkpoint.writer:_File.__init__",
        lambda given, _: given[2].count <= _now().uncompressed_max_rows,
    ),
    Way(
        "ids of a part copied one by one",
        f"{CORE}checkpoint.part_rows:_names",
        lambda given, _: len(given[3]) or _now().copy_id_list_divisor * len(given[1]) < len(given[0]),
    ),
    Way(
        "the list of all ids copied",
        f"{CORE}checkpoint.part_rows:_names",
        lambda given, _: not len(given[3]) and _now().copy_id_list_divisor * len(given[1]) >= len(given[0]),
    ),
    Way(
        "inputs counted over all rows",
        f"{CORE}checkpoint.part_loader:PartLoader._count",
        lambda given, _: len(given[1]) >= _now().vectorized_count_min_rows,
    ),
    Way(
        "inputs counted one by one",
        f"{CORE}checkpoint.part_loader:PartLoader._count",
        lambda given, _: len(given[1]) < _now().vectorized_count_min_rows,
    ),
]
# Ways for which the simulation would need Spark, with the tests that take both alternatives.
ELSEWHERE = {
    "through a file, or through Spark": "tests/unit/test_mailbox.py",
    "the small lane, the large one, jobs that are shared": "tests/unit/test_scheduler.py",
    "rows within the plan of a job, or kept by the server": "tests/spark/test_engine.py",
    "planned by Python while Spark starts, or by compiled code": "tests/unit/test_session_manager.py",
    "copied commits read, kept, or kept and continued": "tests/integration/test_tail_reader.py",
    "a deleted change set brought back, or deleted because it was closed": "tests/integration/test_deletion.py",
    "what a target did, read from its log, or found by comparing states": "tests/integration/test_rebase_reads.py",
    "bases and conflicts of a rebase in its commit, or in a blob": "tests/integration/test_rebases.py",
    "edits checked and folded in one step, or in several": "tests/integration/test_large_commits.py",
}
# By threshold of the log, the state and checkpoints: a way in the list above that the simulation must take, or a test
# that names the threshold.
FORCED = {
    "inline_max_bytes": ("a commit with its delta", "a delta in a blob", "a request in a blob"),
    "inline_max_updates": ("a commit with its delta", "a delta in a blob"),
    "inline_table_max_rows": ("a commit with a table", "a table in a blob"),
    "blob_slice_max_items": ("tests/unit/test_messages.py",),
    "overlay_merge_per_commit": ("worked in, not all at once",),
    "fold_step": ("tests/integration/test_large_commits.py",),
    "overlay_merge_step": ("worked in, not all at once", "tests/integration/test_before.py"),
    "replay_min_bytes": ("tests/integration/test_rebase_reads.py",),
    "replay_max_bytes": ("tests/integration/test_rebase_reads.py",),
    "on_loop_max_bytes": ("worked here", "worked in a thread"),
    "updates_on_loop_max_bytes": ("a blob decoded here", "a blob decoded in a thread"),
    "hash_on_loop_max_bytes": ("a blob hashed here", "a blob hashed in a thread"),
    "plain_request_max_updates": ("tests/integration/test_rounds.py",),
    "round_min_owners": ("tests/integration/test_rounds.py",),
    "purge_min_requests": ("requests purged", "tests/unit/test_request_deleter.py"),
    "vectorized_write_min_inputs": ("a definition by arrays", "a definition by a loop"),
    "dependents_rebuild_min_edges": ("the way back built anew",),
    "dependents_drop_min_edges": ("the way back forgotten",),
    "compact_min_dead_inputs": ("tests/unit/test_state.py",),
    "match_cache_max_rows": ("tests/property/test_columns.py",),
    "match_cache_max_changes": ("a pattern looked up", "what a pattern matched brought up to date"),
    "id_tree_max_partial_scans": ("ids of some heads", "ids of all heads"),
    "pattern_links_max_excess": ("tests/property/test_columns.py",),
    "part_rows": ("a checkpoint of one file", "a checkpoint of several files"),
    "part_bytes": ("tests/unit/test_checkpoint.py",),
    "batch_rows": ("a later batch",),
    "batch_bytes": ("a batch cut for its size",),
    "batch_inputs": ("tests/unit/test_checkpoint.py",),
    "batch_outcomes": ("tests/unit/test_checkpoint.py",),
    "copy_step_objects": ("tests/property/test_wire_checkpoint.py",),
    "uncompressed_max_rows": ("a part compressed", "a part not compressed"),
    "copy_id_list_divisor": ("ids of a part copied one by one", "the list of all ids copied"),
    "delta_changes_divisor": ("a base", "a delta", "tests/unit/test_checkpoint.py"),
    "deltas_bytes_factor": ("tests/property/test_wire_checkpoint.py",),
    "max_deltas": ("tests/property/test_wire_checkpoint.py",),
    "vectorized_count_min_rows": ("inputs counted over all rows", "inputs counted one by one"),
    "inline_tail_max_bytes": ("tests/integration/test_branch_inheritance.py",),
    "tail_max_bytes": ("tests/integration/test_made_checkpoints.py",),
    "tail_cache_max_bytes": ("tests/integration/test_tail_reader.py",),
}


class Counts:
    """How often each way was taken while `counting`."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls of the wrapped functions inside the `with` block."""
        with _patched({name: self._counted(name) for name in dict.fromkeys(way.function for way in WAYS)}):
            yield

    def _counted(self, name: str) -> Callable[[Any], Any]:
        ways = [way for way in WAYS if way.function == name]
        taken = self.taken

        def wrap(function: Any) -> Any:
            @functools.wraps(function)
            def call(*args: Any, **named: Any) -> Any:
                found = function(*args, **named)
                for way in ways:
                    if way.when(args, found):
                        taken[way.name] += 1
                return found

            return call

        return wrap


@contextmanager
def _patched(wraps: dict[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Replace functions, by name, in every module of the product that has them, or that has a part of them."""
    patches = []
    for name, wrap in wraps.items():
        module_name, _, path = name.partition(":")
        module = importlib.import_module(module_name)
        owner, _, attribute = path.rpartition(".")
        if owner:
            patches.append(
                mock.patch.object(getattr(module, owner), attribute, wrap(vars(getattr(module, owner))[attribute]))
            )
            continue
        function = getattr(module, attribute)
        wrapped = wrap(function)
        holders = [
            one
            for one_name, one in list(sys.modules.items())
            if one_name.startswith(("rebaser", "tests.simulation")) and vars(one).get(attribute) is function
        ]
        patches += [mock.patch.object(holder, attribute, wrapped) for holder in holders]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
