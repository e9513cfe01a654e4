"""Writes the log of one owned change set: drafts of commits, their blobs, the fenced append, checkpoints, tombstones.

Only `commit_log` appends. The owner of a change set uses this package; `rebaser.doctor` also writes checkpoints with
it, and `rebaser.sweeper` asks `checkpointer` whether the stream of all logs is crowded.
"""
