"""How far back the log of a change set can be read.

A log is purged from its beginning. What is left can be read from the first commit on that names a checkpoint with a
whole tail. Commits in front of it are left, too: they were appended while that checkpoint was being written, and name
the one before, whose tail is gone.

Invariant: `readable` alone decides this, for readers, purges and tools.
"""

from rebaser_core.commit import CheckpointRef


def readable(checkpoint: CheckpointRef | None, begins_after: int) -> bool:
    """Whether the state after a commit that names `checkpoint` can be read from a log that begins after `begins_after`.

    `begins_after`: the sequence that the oldest commit in the log follows, 0 if the log was never purged.
    """
    return (0 if checkpoint is None else checkpoint.sequence) >= begins_after
