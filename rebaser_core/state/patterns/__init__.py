"""Inputs by pattern: which patterns match an id (`globs`), which ids match a pattern (`id_tree`), and both for
the rows of columns (`links`, `matches`).

`rebaser_core.state.columns` and the planner use this package; readers use `globs.matcher`. Of `rebaser_core.state`,
`links` and `matches` use only the arrays of `value_columns`.
"""
