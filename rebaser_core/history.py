"""Determines how far back the log of a change set can be read, and how much of it is kept.

A log is purged from its beginning. The rest can be read from the first commit that names a checkpoint with a complete
tail. Earlier commits may also remain: those appended while that checkpoint was being written. They name the previous
checkpoint, and a part of the tail of that one was purged.

The state remembers, as marks, the checkpoints that its log has named. So the owner and tools can compute from the state
alone how much of the log is to be purged.

Invariants: readers, purges and tools all ask `readable` which positions can be read. `purge_through` returns 0 or the
sequence of a checkpoint that is older than the newest one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rebaser_core.commit import CheckpointRef

MAX_MARKS = 128


@dataclass(frozen=True, slots=True)
class Mark:
    """A checkpoint that the log has named.

    `sequence` is the commit whose state it holds. `named` is the first commit that names it. This is the oldest
    position whose state is read from the checkpoint. `at_ms` is the time of that commit (Unix ms), never less than that
    of an older mark. `weight` is the weight of the log up to that commit, in bytes, blobs included. Purged commits
    count. Commits before a checkpoint of an earlier release, which records no weight, do not count.
    """

    sequence: int
    named: int
    at_ms: int
    weight: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How much history is kept: the commits of the last `for_ms` milliseconds, but not more than `max_bytes` of log."""

    for_ms: int
    max_bytes: int


def read_after(checkpoint: CheckpointRef | None, begin: int = 0) -> int:
    """Return the sequence after which a reader starts in the log, to get the state after a commit that names
    `checkpoint`.

    `begin` is the sequence of the `create` commit if the checkpoint is that of the parent, otherwise 0.
    """
    if begin:
        return begin - 1
    return 0 if checkpoint is None else checkpoint.sequence


def readable(checkpoint: CheckpointRef | None, begins_after: int, begin: int = 0) -> bool:
    """Return whether the state after a commit that names `checkpoint` can be read from a log that begins after
    `begins_after`.

    `begins_after` is the sequence before the oldest commit in the log, 0 if the log was never purged. `begin` is as in
    `read_after`.
    """
    return read_after(checkpoint, begin) >= begins_after


def add_mark(marks: list[Mark], checkpoint: CheckpointRef, named: int, at_ms: int, weight: int) -> None:
    """Add the mark of `checkpoint`, which the commit at log sequence `named` was the first to name.

    If there are too many marks, every second one of the older half is dropped. As a result, more of the log is kept
    than necessary.
    """
    if marks:
        at_ms = max(at_ms, marks[-1].at_ms)
    marks.append(Mark(checkpoint.sequence, named, at_ms, weight))
    if len(marks) > MAX_MARKS:
        del marks[1 : MAX_MARKS // 2 : 2]


def purge_through(marks: Sequence[Mark], weight: int, retention: Retention, *, crowded: bool = False) -> int:
    """Return the log sequence up to which the log is to be purged; 0 if it is not to be purged.

    `weight` is the weight of the whole log, counted as in `Mark`. If `crowded` is true, there is no room for history.
    Ages are measured from the newest mark, not from the clock, so the result depends only on the log.

    The newest two checkpoints and the log after them always remain, for readers that started from the older one.
    """
    last = len(marks) - 2
    if last < 0:
        return 0
    if crowded or not retention.for_ms:
        return marks[last].sequence
    begin_ms = marks[-1].at_ms - retention.for_ms
    place = -1
    for number, mark in enumerate(marks[: last + 1]):
        if mark.at_ms <= begin_ms:  # a reader of the state at `begin_ms` starts from this mark or a newer one
            place = number
    if weight > retention.max_bytes:
        while place < last and (place < 0 or weight - marks[place].weight > retention.max_bytes):
            place += 1
    return marks[place].sequence if place >= 0 else 0
