"""Determines how far back the log of a change set can be read, and how much of it is kept.

A log is purged from its beginning. The state after a commit can be read if the checkpoint that the commit names and all
commits after that checkpoint (its tail) remain. Some commits at the beginning of the remaining log cannot be read: they
were appended while a checkpoint was being written, and a part of the tail of the previous checkpoint was purged.

The state records the checkpoints that its log has named, as marks. So servers and tools can compute from the state
alone how much of the log is to be purged.

Invariants: readers, purges and tools all call `readable` to determine which positions can be read. `purge_through`
returns 0 or the sequence of a checkpoint that is older than the newest one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rebaser_core.commit import CheckpointRef

MAX_MARKS = 128


@dataclass(frozen=True, slots=True)
class Mark:
    """A record of a checkpoint that the log has named.

    The checkpoint contains the state after the commit at log sequence `sequence`. `named` is the log sequence of the
    first commit that names the checkpoint; states before this commit are read from earlier checkpoints. `at_ms` is the
    time of the commit `named` (Unix ms), or the time of an older mark if that time is later. `weight` is the number of
    bytes in the log up to the commit `named`, including blobs and purged commits. Commits before a checkpoint of an
    earlier release are not counted, because checkpoints of that release do not record the weight.
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
    """Return the log sequence after which a reader starts to read, to get the state after a commit that names
    `checkpoint`.

    `begin` is the sequence of the `create` commit if the checkpoint belongs to the parent of the change set; otherwise
    it is 0.
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
    """Add a mark for `checkpoint` to `marks`. The other parameters are the fields of the mark.

    If there are then too many marks, every second mark of the older half is dropped. A purge can end only at a mark, so
    more of the log may then be kept than the retention requires.
    """
    if marks:
        at_ms = max(at_ms, marks[-1].at_ms)
    marks.append(Mark(checkpoint.sequence, named, at_ms, weight))
    if len(marks) > MAX_MARKS:
        del marks[1 : MAX_MARKS // 2 : 2]


def purge_through(marks: Sequence[Mark], weight: int, retention: Retention, *, crowded: bool = False) -> int:
    """Return the log sequence up to which the log is to be purged, or 0 if it is not to be purged.

    `weight` is the weight of the whole log, counted as in `Mark`. If `crowded` is true, the stream has no room for
    history, so as much as possible is purged. Ages are measured from the newest mark instead of the clock, so the
    result depends only on the log.

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
        if mark.at_ms <= begin_ms:  # to read the state at `begin_ms`, nothing before this mark is needed
            place = number
    if weight > retention.max_bytes:
        while place < last and (place < 0 or weight - marks[place].weight > retention.max_bytes):
            place += 1
    return marks[place].sequence if place >= 0 else 0
