"""Determines how far back the log of a change set can be read, and how much of it is kept.

A log is purged from its beginning. The state after a commit can be read if the checkpoint to which the commit refers
and all commits after that checkpoint (its tail) remain. Some commits at the beginning of the remaining log cannot be
read: they were appended while a checkpoint was being written, and a part of the tail of the previous checkpoint was
purged.

The state contains a mark for each checkpoint to which its log has referred. From these marks alone, servers and tools
can compute how much of the log should be purged.

Invariants: readers, purges and tools all call `readable` to determine which positions can be read. `purge_through`
returns 0 or the sequence of a checkpoint that is older than the newest one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rebaser_core.commit import CheckpointRef

MAX_MARKS = 128


@dataclass(frozen=True, slots=True)
class Mark:
    """A record of a checkpoint to which the log has referred.

    The checkpoint contains the state after the commit at log sequence `sequence`. `named` is the log sequence of the
    first commit that refers to the checkpoint; states before that commit are read from earlier checkpoints. `at_ms` is
    the time of that commit (Unix ms), or the time of an older mark if it is later. `weight` is the number of bytes in
    the log up to that commit, including blobs and purged commits. Commits before a checkpoint that an earlier release
    wrote are not counted, because such a checkpoint does not record the weight.
    """

    sequence: int
    named: int
    at_ms: int
    weight: int


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits of the history that is kept: the commits of the last `for_ms` milliseconds, but at most `max_bytes`
    bytes of the log."""

    for_ms: int
    max_bytes: int


def read_after(checkpoint: CheckpointRef | None, begin: int = 0) -> int:
    """Return the log sequence after which to start reading in order to rebuild the state as of a commit that refers to
    `checkpoint`.

    `begin` is the sequence of the `create` commit if the checkpoint belongs to the parent of the change set; otherwise
    it is 0.
    """
    if begin:
        return begin - 1
    return 0 if checkpoint is None else checkpoint.sequence


def readable(checkpoint: CheckpointRef | None, begins_after: int, begin: int = 0) -> bool:
    """Return whether the log still has all commits that are needed to read the state after a commit that refers to
    `checkpoint`.

    `begins_after` is the log sequence just before that of the oldest commit in the log, or 0 if the log was never
    purged. `begin` has the same meaning as in `read_after`.
    """
    return read_after(checkpoint, begin) >= begins_after


def add_mark(marks: list[Mark], checkpoint: CheckpointRef, named: int, at_ms: int, weight: int) -> None:
    """Add a mark for `checkpoint` to `marks`. The other parameters are the fields of the mark.

    If there are then too many marks, every second mark of the older half is dropped. A purge can end only at a mark, so
    more of the log may then be kept than the retention policy requires.
    """
    if marks:
        at_ms = max(at_ms, marks[-1].at_ms)
    marks.append(Mark(checkpoint.sequence, named, at_ms, weight))
    if len(marks) > MAX_MARKS:
        del marks[1 : MAX_MARKS // 2 : 2]


def purge_through(marks: Sequence[Mark], weight: int, retention: Retention, *, crowded: bool = False) -> int:
    """Return the log sequence up to which the log should be purged, or 0 if nothing should be purged.

    `weight` is the weight of the whole log, counted as in `Mark`. If `crowded` is true, the stream has no room for
    history, so as much as possible is purged. Ages are measured back from the newest mark instead of from the current
    time, so the result depends only on the log.

    The newest two checkpoints and the commits after the older of the two always remain, because a reader may have
    started from the older one.
    """
    last = len(marks) - 2
    if last < 0:
        return 0
    if crowded or not retention.for_ms:
        return marks[last].sequence
    begin_ms = marks[-1].at_ms - retention.for_ms
    place = -1
    for number, mark in enumerate(marks[: last + 1]):
        if mark.at_ms <= begin_ms:  # the state at `begin_ms` can be read without the log before this mark
            place = number
    if weight > retention.max_bytes:
        while place < last and (place < 0 or weight - marks[place].weight > retention.max_bytes):
            place += 1
    return marks[place].sequence if place >= 0 else 0
