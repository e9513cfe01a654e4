"""Lets the other processes of the machine take precedence over a process, as far as the system allows it."""

import ctypes
import os
import platform
import struct
import sys
from contextlib import suppress
from pathlib import Path

SLICE = 100_000_000  # nanoseconds; the longest that Linux grants
LOWEST = 19  # the niceness with the smallest share of a CPU
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call, for which glibc before 2.41 has no name


def run_when_idle(pid: int) -> None:
    """Let all other processes of the machine take precedence over the process `pid` and over all that it starts from
    now on. While others use all CPUs, it gets next to no processor time. Only a privileged process can undo this.

    A thread of the policy `SCHED_IDLE` leaves its CPU as soon as an ordinary thread of its session wants to run (see
    sched(7)). Linux may divide the CPUs among sessions first ("autogroup"); the policy then says nothing about other
    sessions. So the session gets the lowest share, and its threads get the longest slices: since 6.12, a thread that
    wakes up takes the CPU at once from one with a longer slice, and otherwise has to wait up to the next tick.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError):  # the process has ended, which its users will notice
        for thread in [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]:
            with suppress(OSError):  # the thread has ended, or a sandbox forbids it
                _lengthen_slices(thread)
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        if os.getsid(pid) == pid:
            Path(f"/proc/{pid}/autogroup").write_text(str(LOWEST))


def _lengthen_slices(thread: int) -> None:
    number = SCHED_SETATTR.get(platform.machine())
    if number is not None and os.sched_getscheduler(thread) == os.SCHED_OTHER:
        attributes = _attributes(os.getpriority(os.PRIO_PROCESS, thread))
        ctypes.CDLL(None).syscall(number, thread, attributes, 0)


def _attributes(niceness: int) -> bytes:
    """Return a `struct sched_attr` (see sched_setattr(2)) for an ordinary thread."""
    size, policy, flags, priority, deadline, period = 48, os.SCHED_OTHER, 0, 0, 0, 0
    return struct.pack("=IIQiIQQQ", size, policy, flags, niceness, priority, SLICE, deadline, period)
