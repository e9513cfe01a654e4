"""The folded state of a change set: what its log adds up to.

`change_set` is the state and its views, `overlay` its values by id, `columns` the arrays underneath; `patterns` answers
which patterns match which ids. For the owner, which folds and decides; for the planner, which reads the arrays of a
view; for readers of a log; and for checkpoints. Imports only root modules of `rebaser_core`.
"""
