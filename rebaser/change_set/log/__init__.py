"""Writes the log of one owned change set: drafts of commits, their blobs, the fenced append, checkpoints, tombstones.

`commit_log` is the only module that appends. Only the owner of a change set imports this package.
"""
