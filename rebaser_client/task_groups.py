"""A task group that raises the exception of the task that failed, without an `ExceptionGroup` around it.

Invariant: if the body or a task fails, the body and all other tasks are cancelled. The group raises the failure once
all of them have ended.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def flat_task_group() -> AsyncIterator[TaskGroup]:
    """Open a task group whose first failure is raised unchanged; later failures are attached to it as notes."""
    failures: BaseExceptionGroup | None = None
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as error:
        failures = error
    if failures is not None:  # raised outside of the handler, so that the exception group is not shown as its context
        first, *others = failures.exceptions
        for other in others:
            first.add_note(f"while the task group ended: {other!r}")
        raise first
