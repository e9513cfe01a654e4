"""Chooses how an update is planned: as packets of the affected subgraph, or as one pass over the full graph."""

import numpy as np

from rebaser.dvu.functions.registry import FunctionRegistry, registry
from rebaser.dvu.planning import layout, subgraph
from rebaser.dvu.planning.full_plan import FullGraphPlan, plan_full_graph
from rebaser.dvu.planning.packet_plan import PacketPlan
from rebaser_core import thresholds
from rebaser_core.state.change_set import View
from rebaser_core.thresholds import Thresholds


def plan(
    view: View, limits: Thresholds | None = None, functions: FunctionRegistry | None = None
) -> PacketPlan | FullGraphPlan:
    """Plan the update that is due for `view`, which must stay open until the plan is carried out. Raise `DvuError` if
    the affected values have too many inputs."""
    limits = limits or thresholds.now
    functions = functions or registry()
    columns = view.columns
    subgraph.refresh_indexes(columns)
    if columns.size < limits.full_plan_min_values:
        return PacketPlan(view, limits, functions)
    roots = subgraph.root_rows(view)
    graph = layout.cached_layout(columns)
    # A full plan pays off if the update affects a large share of the graph, and the share must be larger if the layout
    # has to be built first. The search stops when it has found more values than that share, so it takes no longer for a
    # large update than for a small one. With a cached layout, this search stops at half the share, because
    # `plan_full_graph` then counts the affected values faster and chooses the plan.
    divisor = limits.layout_reach_divisor if graph is None else 2 * limits.full_plan_reach_divisor
    reached = subgraph.reach(view, roots, limits, columns.size // divisor)
    min_inputs = limits.full_plan_min_reached_inputs(columns.refs_used)
    if reached is None or subgraph.input_count(columns, reached.rows, limits.interpreted_max) >= min_inputs:
        graph = graph or layout.build_layout(columns, limits.interpreted_max)
        starts = np.concatenate((roots, subgraph.recompute_rows(view)))
        full_plan = plan_full_graph(view, graph, starts, functions, limits)
        if full_plan is not None:
            return full_plan
    return PacketPlan(view, limits, functions, reached)
