"""Chooses how an update is planned: in packets of what is affected, or as one sweep over the whole graph."""

import numpy as np

from rebaser.dvu.functions.registry import Registry, registry
from rebaser.dvu.planning import full_plan, layout, subgraph
from rebaser.dvu.planning.packet_plan import Plan
from rebaser_core import thresholds
from rebaser_core.state.change_set import View
from rebaser_core.thresholds import Thresholds


def plan(view: View, limits: Thresholds | None = None, functions: Registry | None = None) -> Plan | full_plan.WholePlan:
    """Plan the update that `view` owes. The view must stay open until the plan is done."""
    limits = limits or thresholds.now
    functions = functions or registry()
    columns = view.columns
    subgraph.tidy(columns)
    if columns.size < limits.whole:
        return Plan(view, limits, functions)
    roots = subgraph.roots_of(view)
    kept = layout.laid(columns)
    # Finding out that it is much costs what it may cost to find that it is little.
    reached = subgraph.reach(view, roots, limits, columns.size // (limits.lay if kept is None else 2 * limits.share))
    if reached is None or subgraph.inputs_of(columns, reached.rows, limits.few) >= limits.many(columns.refs_used):
        kept = kept or layout.lay(columns, limits.few)
        made = full_plan.sweep(view, kept, np.concatenate((roots, subgraph.anew(view))), functions, limits)
        if made is not None:
            return made
    return Plan(view, limits, functions, reached)
