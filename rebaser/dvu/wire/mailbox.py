"""Passes large messages between the owner and workers on the same machine as files, in a folder for each job. Workers
report their progress in the same folder.

Spark takes 8 ms to send a megabyte to a worker and 8 ms to send it back, because each step copies the bytes. Passing
the megabyte as a file takes 1 ms.

Invariant: the owner creates the folder before the job and removes it afterwards, so a late worker leaves no file
behind. A message that cannot be written to a file is sent through Spark.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from rebaser.dvu.wire.packet import Encoded
from rebaser_core import thresholds
from rebaser_core.errors import DvuError

_REPORT_EVERY = 0.5  # minimum seconds between reports of a task's progress
_PROGRESS = "done-"
_FUNCTION = "runs-"
_MAX_FUNCTION = 200  # maximum number of characters of the name of a function


@contextlib.contextmanager
def job_folder(tag: str, parent: Path | None) -> Iterator[str]:
    """Create a folder in `parent` for the job with `tag`, yield its path, and remove it at the end. Yield "" if
    `parent` is None, or if the folder cannot be created."""
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
        # Rename the folder first. Otherwise, a worker could write a file into it while it is being removed, and the
        # folder would remain.
        removed = folder.with_name(f"{tag}.gone")
        with contextlib.suppress(OSError):
            folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def put(folder: str, name: str, data: Encoded) -> bool:
    """Write `data` to the file `name` in `folder` if it is large enough for a file. Return whether it was written."""
    if not folder or len(data) < thresholds.now.file_transfer_min_bytes:
        return False
    return _write(folder, name, data)


def _write(folder: str, name: str, data: Encoded) -> bool:
    unfinished = Path(folder, f"{name}.{os.getpid()}")  # a unique name, even if Spark runs a task twice
    try:
        unfinished.write_bytes(data)
        unfinished.replace(Path(folder, name))
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True


def get(folder: str, name: str) -> pa.Buffer:
    """Return the message in the file `name`. The message is memory-mapped, and stays readable after the folder is
    removed. Raise `DvuError` if the file cannot be read."""
    try:
        with pa.memory_map(str(Path(folder, name))) as file:
            return file.read_buffer()
    except (OSError, pa.ArrowException) as error:
        raise DvuError(f"a packet or its results cannot be read from the mailbox: {str(error)[:200]}") from None


class ProgressFile:
    """A file that reports the progress of a task to the owner, packet by packet. Call `begin` when the task begins a
    packet, and this object with the number of nodes that the task has visited since the last call, whether it computed
    them or not.

    The file is written at most every half second, so a short task writes no file. `name` must be unique to the task.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._name = f"{_PROGRESS}{name}"
        self._ended: list[bytes] = []
        self._packet = self._visited = 0
        self._next_report = time.monotonic() + _REPORT_EVERY

    def begin(self, packet: int) -> None:
        """Record that the task begins the packet with the index `packet`."""
        if self._visited:
            self._ended.append(b"%d %d\n" % (self._packet, self._visited))
        self._packet, self._visited = packet, 0

    def __call__(self, nodes: int) -> None:
        self._visited += nodes
        now = time.monotonic()
        if now >= self._next_report and self._folder:
            self._next_report = now + _REPORT_EVERY
            _write(self._folder, self._name, b"%s%d %d\n" % (b"".join(self._ended), self._packet, self._visited))


def visited_nodes(folder: Path) -> Mapping[int, int]:
    """Return the number of nodes that the workers of a job have reported as visited, by the index of the packet."""
    visited: dict[int, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for path in folder.glob(f"{_PROGRESS}*"):
            if path.name.count(".") == 0:
                for line in path.read_bytes().splitlines():
                    packet, nodes = map(int, line.split())
                    visited[packet] = visited.get(packet, 0) + nodes
    return visited


def put_function(folder: str, name: str, function: str) -> None:
    """Report to the owner that the task `name` runs `function`."""
    _write(folder, f"{_FUNCTION}{name}", function.encode())


def running_function(folder: Path) -> str:
    """Return the function that a worker of a job was last seen to run for seconds; empty if none was."""
    with contextlib.suppress(OSError, ValueError):
        found = [path for path in folder.glob(f"{_FUNCTION}*") if path.name.count(".") == 0]
        newest = max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
        text = "" if newest is None else newest.read_bytes()[: 4 * _MAX_FUNCTION].decode()
        return "".join(filter(str.isprintable, text))[:_MAX_FUNCTION]
    return ""
