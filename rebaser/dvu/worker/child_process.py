"""Calls functions in a child process, because they may end the process that they run in.

Invariant: the caller gets a value or a fault for each call, even if the function ends its process. If the function
returns, the outcome is the same as for a call in this process.
"""

import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any

import cbor2

from rebaser.dvu import faults
from rebaser_core.values import Json

TRIES = 2  # maximum number of attempts at a call; an attempt fails if the child process ends

# The outcome of a call: a list with one item, the value, or with two items, the code and the text of a fault.
CallOutcome = list[Any]

_LENGTH = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1


def supported() -> bool:
    """Return whether this system can fork."""
    return hasattr(os, "fork")


class ChildProcess:
    """Runs `handle(number, values)` in a child process, which is forked from this process at the first call. If the
    child has ended, the next call forks another one.

    Call `close` when no more calls will be made.
    """

    def __init__(self, handle: Callable[[int, list[Json]], CallOutcome]) -> None:
        self._handle = handle
        self._pid = 0
        self._requests = self._replies = -1  # file descriptors

    def call(self, number: int, function: str, values: list[Json]) -> CallOutcome:
        """Run `handle(number, values)` in the child, and return its outcome. If the child ends during each of `TRIES`
        attempts, the outcome is the fault `crashed`, whose message contains the name `function`."""
        request = cbor2.dumps((number, values))
        ending = ""
        for _ in range(TRIES):
            if not self._pid:
                self._start()
            try:
                _write(self._requests, request)
                reply = _read(self._replies)
            except (EOFError, BrokenPipeError):
                ending = self._reap()
            else:
                outcome: CallOutcome = cbor2.loads(reply)
                return outcome
        return list(faults.crashed(function, ending))

    def close(self) -> None:
        """End the child process, if there is one."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._reap()

    def _start(self) -> None:
        child_requests, self._requests = os.pipe()
        self._replies, child_replies = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(child_requests)
            os.close(child_replies)
            return
        try:
            os.close(self._requests)
            os.close(self._replies)
            _die_with_parent()
            self._serve(child_requests, child_replies)
        finally:
            os._exit(0)  # the child must not run cleanup code of the parent

    def _serve(self, requests: int, replies: int) -> None:
        with contextlib.suppress(EOFError):
            while True:
                number, values = cbor2.loads(_read(requests))
                _write(replies, cbor2.dumps(self._handle(number, values)))

    def _reap(self) -> str:
        """Wait until the child has ended; it must be ending already. Return a text that says how it ended."""
        os.close(self._requests)
        os.close(self._replies)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:  # most likely the kernel, because memory ran out
            return "signal SIGKILL, which the system sends when a process exceeds a memory limit"
        return f"exit code {code}" if code >= 0 else f"signal {_signal(-code)}"


def _die_with_parent() -> None:
    """Move this child process out of its parent's process group, so that a signal to the child's group does not reach
    the parent. On Linux, also make this process die when the parent dies, even while a function hangs."""
    os.setsid()
    if sys.platform == "linux":
        parent = os.getppid()
        with contextlib.suppress(Exception):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _write(descriptor: int, data: bytes) -> None:
    unsent = memoryview(_LENGTH.pack(len(data)) + data)
    while unsent:
        unsent = unsent[os.write(descriptor, unsent) :]


def _read(descriptor: int) -> bytes:
    """Return the next message from a pipe. Raise `EOFError` if the other process has closed the pipe."""
    (length,) = _LENGTH.unpack(_read_exactly(descriptor, _LENGTH.size))
    return _read_exactly(descriptor, length)


def _read_exactly(descriptor: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(descriptor, min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
