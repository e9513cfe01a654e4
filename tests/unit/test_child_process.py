"""A child process that dies leaves nothing of itself in the process that called it."""

import os
from pathlib import Path

import pytest

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
