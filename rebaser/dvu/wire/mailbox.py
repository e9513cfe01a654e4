"""Passes large messages between the owner and the workers of one machine as files, in a folder for each job. Workers
report their progress in the same folder.

Through Spark, a megabyte takes 8 ms to a worker and 8 ms back, because each step copies it. Through a file, it takes 1
ms.

Invariant: the owner creates the folder before the job and removes it afterwards, so a late worker leaves no file
behind. A message that cannot be written is sent through Spark instead.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from rebaser.dvu.wire.packet import Encoded
from rebaser_core import thresholds
from rebaser_core.errors import DvuError

_REPORT_EVERY = 0.5  # seconds between reports of a task's progress
_PROGRESS = "done-"


@contextlib.contextmanager
def job_folder(tag: str, parent: Path | None) -> Iterator[str]:
    """Yield the mailbox of the job with `tag`, which is a folder in `parent`. Yield "" if there is no parent, or if the
    folder cannot be created."""
    if parent is None:
        yield ""
        return
    folder = parent / tag
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError:
        yield ""
        return
    try:
        yield str(folder)
    finally:
        # Rename the folder first: otherwise, a worker could still write into it while it is being removed, and it would
        # remain.
        removed = folder.with_name(f"{tag}.gone")
        with contextlib.suppress(OSError):
            folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def put(folder: str, name: str, data: Encoded) -> bool:
    """Write `data` as `name` into `folder` if it is large enough for a file. Returns whether it was written."""
    if not folder or len(data) < thresholds.now.file_transfer_min_bytes:
        return False
    return _write(folder, name, data)


def _write(folder: str, name: str, data: Encoded) -> bool:
    unfinished = Path(folder, f"{name}.{os.getpid()}")  # unique even if Spark runs a task twice
    try:
        unfinished.write_bytes(data)
        unfinished.replace(Path(folder, name))
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True


def get(folder: str, name: str) -> pa.Buffer:
    """Return the message `name`, memory-mapped: it stays readable after the folder is removed. Raises `DvuError` if it
    is missing."""
    try:
        with pa.memory_map(str(Path(folder, name))) as file:
            return file.read_buffer()
    except (OSError, pa.ArrowException) as error:
        raise DvuError(f"a packet or its results cannot be read from the mailbox: {str(error)[:200]}") from None


class ProgressFile:
    """Shows the owner the progress of a task. Call it with the number of nodes visited since the last call, computed or
    not.

    The file is written at most every half a second, so a short task writes no file. `name` is unique to the task.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._name = f"{_PROGRESS}{name}"
        self._visited = 0
        self._next_report = time.monotonic() + _REPORT_EVERY

    def __call__(self, nodes: int) -> None:
        self._visited += nodes
        now = time.monotonic()
        if now >= self._next_report and self._folder:
            self._next_report = now + _REPORT_EVERY
            _write(self._folder, self._name, b"%d" % self._visited)


def visited_nodes(folder: Path) -> int:
    """Return the number of nodes that the workers of a job have reported as visited, computed or not; 0 without a
    report."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for path in folder.glob(f"{_PROGRESS}*"):
            if path.name.count(".") == 0:
                total += int(path.read_bytes())
    return total
