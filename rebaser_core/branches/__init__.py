"""Contains the state of a branch and the three-way merge of definitions. `rebaser_core.state` uses both when it folds
the log of a change set."""
