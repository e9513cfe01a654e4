"""Inputs by pattern: which patterns match an id (`globs`), which ids match a pattern (`id_tree`), and both for
the rows of columns (`links`, `matches`).

For `rebaser_core.state.columns` and the planner; `globs.matcher` also for readers. `links` and `matches` use the arrays
of `rebaser_core.state.value_columns`, and nothing else of `rebaser_core.state`.
"""
