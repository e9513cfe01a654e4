"""Calls in a child process, for functions that may end the process they run in.

Invariant: whatever a function does to its process, the caller gets a value or a fault for each call, the same that a
call right here would give if it came back.
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

TRIES = 2  # calls of one value that may end a process

# A value in a list, or the code and the text of a fault.
CallOutcome = list[Any]

_LENGTH = struct.Struct("<Q")
_SETTLED, _DIED = 0, 1
_PR_SET_PDEATHSIG = 1


def supported() -> bool:
    """Whether this system has what it takes."""
    return hasattr(os, "fork")


class ChildProcess:
    """`settle(number, values)` in a child: a copy of this process, made at the first call, and after each death.

    `close` it in the end.
    """

    def __init__(self, settle: Callable[[int, list[Json]], CallOutcome]) -> None:
        self._settle = settle
        self._child = 0
        self._to = self._from = -1

    def ask(self, number: int, function: str, values: list[Json]) -> CallOutcome:
        """The outcome of one call; `function` is what a fault names."""
        data = cbor2.dumps((number, values))
        how = ""
        for _ in range(TRIES):
            if not self._child:
                self._start()
            try:
                _write(self._to, data)
                answer = _read(self._from)
            except (EOFError, BrokenPipeError):
                how = self._end()
            else:
                outcome: CallOutcome = cbor2.loads(answer)
                return outcome
        return list(faults.crashed(function, how))

    def close(self) -> None:
        """End the child."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            self._end()

    def _start(self) -> None:
        theirs, self._to = os.pipe()
        self._from, answers = os.pipe()
        self._child = os.fork()
        if self._child:
            os.close(theirs)
            os.close(answers)
            return
        try:
            os.close(self._to)
            os.close(self._from)
            _leave_with_parent()
            self._serve(theirs, answers)
        finally:
            os._exit(0)  # nothing of the process that was copied may be finished here

    def _serve(self, requests: int, answers: int) -> None:
        with contextlib.suppress(EOFError):
            while True:
                number, values = cbor2.loads(_read(requests))
                _write(answers, cbor2.dumps(self._settle(number, values)))

    def _end(self) -> str:
        """Forget the child, which is dead or dying. How it ended."""
        os.close(self._to)
        os.close(self._from)
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        code = os.waitstatus_to_exitcode(status)
        return f"exit code {code}" if code >= 0 else f"signal {_signal(-code)}"


def _leave_with_parent() -> None:
    """No signal to the parent's group comes from here; and who hangs when the parent is killed is killed as well."""
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


def _write(to: int, data: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(to, rest) :]


def _read(source: int) -> bytes:
    """One message. Raises `EOFError` where there is no more."""
    (length,) = _LENGTH.unpack(_exactly(source, _LENGTH.size))
    return _exactly(source, length)


def _exactly(source: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(source, min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
