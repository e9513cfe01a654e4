"""The folded state of a change set: the result of all commits in its log.

`change_set` contains the state, `view` its views, `overlay` the values by id, and `columns` the arrays underneath.
`patterns` finds out which patterns match which ids. For the owner, which folds and decides; for the planner, which
reads the arrays of a view; for readers of a log; and for checkpoints. Imports only root modules of `rebaser_core`.
"""
