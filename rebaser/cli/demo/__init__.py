"""The tour of `rebaser demo`: it turns the Python distributions installed here into a graph of values, and edits it.

`environment` reads the distributions, `model` turns them into updates, `story` chooses the edits, `player` sends them,
`branch_scene` plays the scene on a branch, `check` independently computes every value again, `screen` prints the
output, and `run` starts and stops the system. Only `rebaser.cli.commands.running.demo` imports this package, and only
when the demo runs.
"""
