"""The folded state of a change set: the result of all commits in its log.

`change_set` contains the state, `view` its views, `overlay` the values by id, and `columns` the arrays underneath.
`patterns` finds out which patterns match which ids. The owner uses this package to fold and decide, the planner to read
the arrays of a view; readers of a log and checkpoints use it, too. It imports only root modules of `rebaser_core`.
"""
