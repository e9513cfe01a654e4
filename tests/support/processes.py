"""Other processes, watched: which there are, and when they end."""

import os
from pathlib import Path

import anyio


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that still run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def command(pid: int) -> str:
    """What a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def workers(jvm: int) -> list[int]:
    """Python workers of a Spark in `jvm`: the children of its daemon."""
    return [worker for daemon in children(jvm) for worker in children(daemon)]


async def ended(pid: int) -> None:
    """Return when the process is gone; it need not be a child of ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(handle)
    finally:
        os.close(handle)


async def any_ended(pids: list[int]) -> None:
    """Return when one of `pids` is gone."""
    async with anyio.create_task_group() as tasks:

        async def watch(pid: int) -> None:
            await ended(pid)
            tasks.cancel_scope.cancel()

        for pid in pids:
            tasks.start_soon(watch, pid)
