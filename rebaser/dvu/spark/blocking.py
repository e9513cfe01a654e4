"""Runs blocking calls in threads, and interrupts them when the caller is cancelled or a call takes too long.

Invariant: after an interruption, the caller waits until the call has returned, so that no thread is left running.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio import to_thread

_T = TypeVar("_T")


class DeadlineExceeded(Exception):  # noqa: N818 - an event; the caller decides whether it is an error
    """Raised if a blocking call took too long and was interrupted."""


async def run_shielded(call: Callable[[], object]) -> None:
    """Run `call()`, which must not block for long, in a new thread. Wait for it even if this task is cancelled."""
    with anyio.CancelScope(shield=True):
        await to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1))


async def run_interruptible(
    call: Callable[[], _T],
    interrupt: Callable[[anyio.Event], Awaitable[None]],
    *,
    seconds: float,
    stop: anyio.Event | None = None,
    limiter: anyio.CapacityLimiter | None = None,
) -> _T:
    """Return the result of `call()`, which runs in a thread. Never return before the call does.

    When `stop` is set, `seconds` have passed, or this task is cancelled, `interrupt(returned)` is called. This function
    must make the call return soon; the event `returned` is set when the call has returned. Raise the exception of
    `call`, or `DeadlineExceeded` if `call` raises an exception after `seconds` have passed.
    """
    returned = anyio.Event()
    stopped = stop or anyio.Event()
    result: list[_T] = []
    errors: list[Exception] = []
    late = False

    async def watch() -> None:
        nonlocal late
        try:
            with anyio.move_on_after(seconds) as scope:
                await stopped.wait()
            late = scope.cancelled_caught
        finally:
            if not returned.is_set():
                with anyio.CancelScope(shield=True):
                    await interrupt(returned)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            # A thread cannot be cancelled, so wait for it, even if this task is cancelled.
            result.append(await to_thread.run_sync(call, limiter=limiter))
        except Exception as error:  # noqa: BLE001 - raised below, outside the task group, which would wrap it
            errors.append(error)
        finally:
            returned.set()
            tasks.cancel_scope.cancel()
    if result:
        return result[0]
    raise DeadlineExceeded if late else errors[0]
