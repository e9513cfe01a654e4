"""Lists other processes, and waits for their ends."""

import os
from pathlib import Path

import anyio


def children(pid: int) -> list[int]:
    """Return the running children of the process `pid`."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def command(pid: int) -> str:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def workers(jvm: int) -> list[int]:
    """Return the Python workers of the Spark in `jvm`: the children of its daemon."""
    return [worker for daemon in children(jvm) for worker in children(daemon)]


async def ended(pid: int) -> None:
    """Return when the process has ended; it need not be a child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(handle)
    finally:
        os.close(handle)


async def any_ended(pids: list[int]) -> None:
    """Return when one of the processes has ended."""
    async with anyio.create_task_group() as tasks:

        async def watch(pid: int) -> None:
            await ended(pid)
            tasks.cancel_scope.cancel()

        for pid in pids:
            tasks.start_soon(watch, pid)
