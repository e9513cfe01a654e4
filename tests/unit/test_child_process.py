"""A child process that dies leaves nothing behind in the process that called it."""

import os
import signal
from pathlib import Path

import pytest

from rebaser.dvu.worker import child_process
from rebaser.dvu.worker.child_process import ChildProcess, supported

pytestmark = pytest.mark.skipif(not supported(), reason="this system cannot fork")


def test_children_that_die_leave_no_descriptors_open() -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    child = ChildProcess(lambda _number, _values: os._exit(3))
    for _ in range(3):
        assert child.call(0, "dies", [])[0] == "crashed"
    answering = ChildProcess(lambda number, values: [number, *values])
    assert answering.call(1, "adds", [2]) == [1, 2]
    answering.close()
    child.close()
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_pipe_that_takes_a_few_bytes_at_a_time_takes_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal may interrupt a write after a few bytes."""
    data, write = bytes(range(256)), os.write
    receiving, sending = os.pipe()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, given: write(descriptor, given[:7]))
        child_process._write(sending, data)
    os.close(sending)
    with os.fdopen(receiving, "rb") as received:
        assert received.read() == len(data).to_bytes(8, "little") + data


def test_a_child_that_died_between_two_calls_is_replaced() -> None:
    child = ChildProcess(lambda number, values: [number, *values])
    try:
        assert child.call(1, "adds", [2]) == [1, 2]
        os.kill(child._pid, signal.SIGKILL)
        os.waitid(os.P_PID, child._pid, os.WEXITED | os.WNOWAIT)
        assert child.call(3, "adds", [4]) == [3, 4]
    finally:
        child.close()
