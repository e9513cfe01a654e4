"""The demo: the Python distributions installed here, as a graph of values that somebody edits.

`environment` reads them, `model` turns them into updates, `story` picks the edits, `player` sends them, `check`
computes every figure again by other means, `screen` shows, and `run` puts the real system around all of it.
"""
