"""The state of a branch, and the three-way merge of definitions. The folded state of a change set uses both."""
