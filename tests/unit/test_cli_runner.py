"""The exit code of a command says how it ended."""

import os
import signal
from types import SimpleNamespace

import anyio
import pytest

from rebaser.cli import logs, runner
from rebaser.cli.runner import run_async


@pytest.fixture(autouse=True)
def _leaves_this_process_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command configures logging and garbage collection for its own process."""
    monkeypatch.setattr(logs, "show_errors", lambda: None)
    monkeypatch.setattr(runner, "gc", SimpleNamespace(freeze=lambda: None, enable=lambda: None))


@pytest.mark.parametrize(
    ("number", "daemon", "code"),
    [
        (signal.SIGTERM, True, 0),  # the usual way to stop a server
        (signal.SIGTERM, False, 143),  # a command has not finished its work
        (signal.SIGINT, True, 130),
        (signal.SIGINT, False, 130),
    ],
)
def test_a_command_that_is_stopped_by_a_signal_tells_so(number: int, daemon: bool, code: int) -> None:
    async def work() -> int:
        os.kill(os.getpid(), number)
        await anyio.sleep_forever()
        return 0

    assert run_async(work, daemon=daemon) == code


@pytest.mark.parametrize("result", [None, 0, 1, 2])
def test_a_command_that_is_not_stopped_returns_its_result(result: int | None) -> None:
    async def work() -> int | None:
        return result

    assert run_async(work) == (result or 0)
