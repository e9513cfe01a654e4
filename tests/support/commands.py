"""Runs the command line as processes, for tests inside an event loop."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import anyio
from anyio import to_thread

from tests.support.command_server import Commands

ROOT = Path(__file__).parents[2]
COMMANDS = Commands()


def environment(**settings: str) -> dict[str, str]:
    """Return this process's environment with only these settings of Rebaser: `nats_url="..."` is `REBASER_NATS_URL`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REBASER_")}
    return kept | {f"REBASER_{name.upper()}": value for name, value in settings.items()}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rebaser", *arguments]


async def rebaser(*arguments: str, stdin: bytes = b"", **settings: str) -> CompletedProcess[str]:
    """Run one command to its end. The limit of time only ends a command that hangs; it is no measure of speed.

    The process has what it imports already: see `command_server`. A test of how a process starts uses `rebaser_alone`
    or `command`.
    """
    with anyio.fail_after(400):
        start = partial(COMMANDS.start, arguments, environment(**settings), stdin)
        with await to_thread.run_sync(start) as running:
            await anyio.wait_readable(running.answers)
            return running.result()


async def rebaser_alone(*arguments: str, **settings: str) -> CompletedProcess[str]:
    """Do the same as a user's shell: start a new Python."""
    with anyio.fail_after(400):
        done = await anyio.run_process(command(*arguments), check=False, cwd=ROOT, env=environment(**settings))
    return CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


async def rebaser_json(*arguments: str, stdin: bytes = b"", **settings: str) -> Any:
    """Run a command that has to succeed, and return the JSON objects that it prints, one per line."""
    done = await rebaser(*arguments, "--json", stdin=stdin, **settings)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
