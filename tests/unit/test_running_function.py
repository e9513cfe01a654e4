"""A worker that runs a function of a plug-in for seconds tells its owner which one."""

import sys
import threading
from pathlib import Path

import pytest

from rebaser.dvu.functions.base import Function
from rebaser.dvu.functions.plugin_calls import contained
from rebaser.dvu.functions.registry import FunctionRegistry
from rebaser.dvu.wire import mailbox
from rebaser.dvu.worker import running_function
from rebaser.dvu.worker.running_function import function_in, watched


def waits(inputs: dict[str, threading.Event], _: object) -> int:
    """Wait in the library, like a function that asks another system."""
    inputs["begun"].set()
    inputs["go"].wait(60)
    return 1


def function(name: str) -> Function:
    return contained(Function(name=name, call=waits))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Function:
    """The function `company.slow` of a plug-in."""
    slow = function("company.slow")
    monkeypatch.setattr(running_function, "registry", lambda: FunctionRegistry({slow.name: slow}, {}))
    return slow


def test_the_function_that_runs_is_told_while_it_runs(
    installed: Function, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_function, "LONG", 0.0)
    monkeypatch.setattr(running_function, "EVERY", 0.01)
    monkeypatch.setattr(running_function, "_watched_by", 0)
    begun, go = threading.Event(), threading.Event()

    def task() -> None:
        with watched(str(tmp_path), "0"):
            assert installed.call is not None
            installed.call({"begun": begun, "go": go}, {})

    worker = threading.Thread(target=task)
    worker.start()
    try:
        while not (told := mailbox.running_function(tmp_path)):
            assert worker.is_alive()
    finally:
        go.set()
        worker.join()
    assert told.startswith("company.slow (test_running_function.py, line ")


def test_a_function_that_is_not_in_the_registry_is_told_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance, because a plug-in wraps it."""
    monkeypatch.setattr(running_function, "registry", lambda: FunctionRegistry({}, {}))
    seen: list[str] = []

    class Looking(threading.Event):
        def set(self) -> None:
            seen.append(function_in(sys._getframe()))

    done = Looking()
    slow, go = function("company.slow"), threading.Event()
    go.set()
    assert slow.call is not None
    slow.call({"begun": done, "go": go}, {})
    [told] = seen
    assert told.startswith("waits (test_running_function.py, line ")


def test_what_is_no_function_of_a_plug_in_is_not_told(tmp_path: Path) -> None:
    assert function_in(sys._getframe()) == ""
    assert function_in(None) == ""
    assert mailbox.running_function(tmp_path) == mailbox.running_function(tmp_path / "none") == ""
    mailbox.put_function(str(tmp_path), "0", "a" * 500 + "\n")
    assert mailbox.running_function(tmp_path) == "a" * 200
    (tmp_path / "runs-1").write_bytes(b"\xff")
    assert mailbox.running_function(tmp_path) == ""
    with watched("", "0"):
        assert running_function._running is None
