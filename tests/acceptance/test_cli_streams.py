"""The command line as a process whose standard streams are closed, or that is interrupted right after its start."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ROOT, command, environment

NOBODY = "nats://127.0.0.1:9"  # the discard port, which answers nothing


def with_closed(streams: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does with `>&-`, `<&-` or `2>&-`."""
    return subprocess.run(  # noqa: PLW1510 - the exit code is what is looked at
        ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", *command(*arguments)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_closed_output_fails_in_one_line() -> None:
    done = with_closed(">&-", "functions")
    assert (done.returncode, done.stderr) == (1, "rebaser: cannot write the output: Bad file descriptor\n")


def test_no_socket_takes_the_place_of_a_closed_output() -> None:
    done = with_closed(">&-", "get", "shop", "main", "--nats", NOBODY)
    assert done.returncode == 1, done
    assert done.stderr.startswith("rebaser: no connection to NATS"), done


def test_a_closed_input_is_named() -> None:
    done = with_closed("<&-", "enqueue", "shop", "main", "--file", "-")
    assert (done.returncode, done.stderr) == (1, "rebaser: standard input is closed; redirect a file or a pipe to it\n")


def test_who_needs_no_input_and_has_nobody_to_complain_to_works_without() -> None:
    done = with_closed("<&- 2>&-", "functions")
    assert done.returncode == 0
    assert "sum" in done.stdout


@pytest.mark.parametrize("arguments", [("functions",), ("get", "shop", "main")])
def test_ctrl_c_while_modules_are_loaded_ends_it_quietly(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.write(1, b'loading')\nsignal.pause()\n")
    settings = environment() | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", "from rebaser.cli import main; main()", *arguments],
        cwd=ROOT,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 7) == b"loading"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=240)
    assert (process.returncode, errors) == (130, b"")
