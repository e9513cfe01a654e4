"""Writes the log of one owned change set: drafts of commits, their blobs, the fenced append, checkpoints, tombstones.

Only `commit_log` appends. For the owner of a change set; `rebaser.doctor` also writes checkpoints with this package,
and `rebaser.sweeper` asks `checkpointer` whether the stream of all logs is crowded.
"""
