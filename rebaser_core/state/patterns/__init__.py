"""Implements patterns as inputs: finds the patterns that match an id (`globs`) and the ids that match a pattern
(`id_tree`), and does both for the rows of columns (`links` and `matches`).

`rebaser_core.state.columns` and the planner of updates use this package; readers use `globs.matcher`. The modules
`links` and `matches` need only the arrays of `value_columns`, and nothing else of `rebaser_core.state`.
"""
