"""Writes the log of one owned change set: drafts commits, stores their blobs, appends them, and writes checkpoints.

Only `commit_log` appends. The owner of a change set uses this package. `rebaser.doctor` writes checkpoints with it, and
`rebaser.sweeper` calls `checkpointer` to find out whether the stream of all logs is crowded.
"""
