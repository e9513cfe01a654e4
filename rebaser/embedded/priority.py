"""Lets the other processes of the machine take precedence over a process.

Each function changes what the system allows, and leaves the rest as it is.
"""

import ctypes
import os
import platform
import struct
import sys
from contextlib import suppress
from pathlib import Path

SLICE = 100_000  # nanoseconds; Linux does not grant less
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call, for which glibc before 2.41 has no name


def lower_group(pid: int, niceness: int) -> None:
    """Set the niceness of the process group and the session that the process `pid` leads, and shorten its slices."""
    with suppress(OSError):  # the process has ended, which its users will notice
        os.setpriority(os.PRIO_PGRP, pid, niceness)
    # Linux may divide the CPUs among sessions first. The niceness of a process then counts only within its session, and
    # the session has a niceness of its own (see "autogroup" in sched(7)).
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
    shorten_slices(pid)


def shorten_slices(pid: int) -> None:
    """Give the threads of the process `pid`, and all threads and processes that these start from now on, the shortest
    time slice that Linux grants (6.12 or newer).

    Whatever its niceness, a thread keeps its CPU to the end of its slice, usually for 1.4 to 3 ms, even if a thread of
    a higher priority has to wait.
    """
    number = SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    with suppress(OSError):
        libc = ctypes.CDLL(None)
        for thread in [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]:
            with suppress(OSError):  # the thread has ended
                if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                    libc.syscall(number, thread, _attributes(os.getpriority(os.PRIO_PROCESS, thread)), 0)


def _attributes(niceness: int) -> bytes:
    """Return a `struct sched_attr` (see sched_setattr(2)) for an ordinary thread."""
    size, policy, flags, priority, deadline, period = 48, os.SCHED_OTHER, 0, 0, 0, 0
    return struct.pack("=IIQiIQQQ", size, policy, flags, niceness, priority, SLICE, deadline, period)
