"""The state of a branch, and the three-way merge of definitions. `rebaser_core.state` uses both to fold a change
set."""
