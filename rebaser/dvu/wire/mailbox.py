"""What an owner and workers of the same machine leave each other, in a folder of their job: large messages, and how far
a worker is.

Through Spark a megabyte takes 8 ms to a worker and as long back, since it is copied at every step; a file takes one.
Invariant: the owner makes the folder before the job and removes it after, so a worker that comes late leaves nothing.
What cannot be written travels through Spark as everything else.
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

_TELL_EVERY = 0.5  # seconds
_DONE = "done-"


@contextlib.contextmanager
def job_folder(tag: str, parent: Path | None) -> Iterator[str]:
    """The folder for the parcels of one job, in `parent`; empty if there is none, or it cannot be made."""
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
        gone = folder.with_name(f"{tag}.gone")  # else a worker might put something into it that keeps it there
        with contextlib.suppress(OSError):
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def put(folder: str, name: str, data: Encoded) -> bool:
    """Put `data` there if it is large; whether it can be taken there now."""
    if not folder or len(data) < thresholds.now.parcel:
        return False
    return _write(folder, name, data)


def _write(folder: str, name: str, data: Encoded) -> bool:
    unfinished = Path(folder, f"{name}.{os.getpid()}")  # a task may be run twice
    try:
        unfinished.write_bytes(data)
        unfinished.replace(Path(folder, name))
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True


def get(folder: str, name: str) -> pa.Buffer:
    """What was left there, mapped: it stays readable when the folder is gone. Raises `DvuError` if it is not there."""
    try:
        with pa.memory_map(str(Path(folder, name))) as file:
            return file.read_buffer()
    except (OSError, pa.ArrowException) as error:
        raise DvuError(f"a packet or its results were not where they were left: {str(error)[:200]}") from None


class ProgressFile:
    """Call it with how many values a task has computed since: the owner of the job learns, if that takes its time.

    `name` is the task's own.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._name = f"{_DONE}{name}"
        self._done = 0
        self._next = time.monotonic() + _TELL_EVERY

    def __call__(self, values: int) -> None:
        self._done += values
        now = time.monotonic()
        if now >= self._next and self._folder:
            self._next = now + _TELL_EVERY
            _write(self._folder, self._name, b"%d" % self._done)


def computed_values(folder: Path) -> int:
    """How many values workers say they have computed, 0 if they have said nothing."""
    found = 0
    with contextlib.suppress(OSError, ValueError):
        for path in folder.glob(f"{_DONE}*"):
            if path.name.count(".") == 0:
                found += int(path.read_bytes())
    return found
