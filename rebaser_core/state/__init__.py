"""Implements the folded state of a change set, which is the result of all commits in its log.

`change_set` contains the state, `view` its views, `overlay` the values by id, and `columns` the arrays that store the
values. `shown` and `table` show and export a state. `patterns` determines which patterns match which ids. This package
is used by the server that owns a change set, to fold commits and decide requests; by the planner of updates, to read
the arrays of a view; and by every reader of a log, to rebuild the state. This package imports only root modules of
`rebaser_core`.
"""
