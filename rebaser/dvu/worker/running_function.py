"""Reports to the owner which function of a plug-in a worker has been running for seconds, so that a function that hangs
can be named.

Invariant: computing takes no longer for this. A thread of the worker looks now and then at what the task does. It sees
nothing while a function keeps Python from running other threads.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

from rebaser.dvu.functions import plugin_calls
from rebaser.dvu.functions.registry import registry
from rebaser.dvu.wire import mailbox

LONG = 5.0  # seconds after which a task is looked at
EVERY = 2.0  # seconds between looks


class _Task:
    """A task that the thread `ident` runs: its mailbox, and its name there."""

    def __init__(self, folder: str, name: str) -> None:
        self.ident = threading.get_ident()
        self.folder, self.name = folder, name
        self.began = time.monotonic()


_running: _Task | None = None
_watched_by = 0  # the process in which the thread runs: workers are forked


@contextmanager
def watched(folder: str, name: str) -> Iterator[None]:
    """Enter a context in which a task computes. Without a mailbox, nobody is told what it runs."""
    global _running, _watched_by  # noqa: PLW0603 - a worker runs one task at a time
    if not folder:
        yield
        return
    _running = _Task(folder, name)
    if _watched_by != os.getpid():
        _watched_by = os.getpid()
        threading.Thread(target=_watch, name="rebaser-running-function", daemon=True).start()
    try:
        yield
    finally:
        _running = None


def _watch() -> None:
    while True:
        time.sleep(EVERY)
        task = _running
        if task is not None and time.monotonic() - task.began >= LONG:
            frame = sys._current_frames().get(task.ident)  # noqa: SLF001 - documented, but marked as an internal
            if (name := function_in(frame)) and _running is task:
                mailbox.put_function(task.folder, task.name, name)


def function_in(frame: FrameType | None) -> str:
    """Return the function of a plug-in that `frame` and its callers run, with the place in its code; empty if there is
    none."""
    called: FrameType | None = None
    while frame is not None:
        if frame.f_code.co_filename == plugin_calls.__file__:
            return "" if called is None else _described(called.f_code, called.f_lineno)
        called, frame = frame, frame.f_back
    return ""


def _described(code: CodeType, line: int) -> str:
    for function in registry().functions.values():
        for form in (function.call, function.vector):
            if getattr(getattr(form, "__wrapped__", None), "__code__", None) is code:
                return f"{function.name} ({Path(code.co_filename).name}, line {line})"
    return f"{code.co_name} ({Path(code.co_filename).name}, line {line})"
