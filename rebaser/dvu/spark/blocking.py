"""Blocking calls that can be ended.

Invariant: a thread is never left behind. What blocks is told to end from outside, and then waited for.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio import to_thread

_T = TypeVar("_T")


class DeadlineExceeded(Exception):  # noqa: N818 - it says when, and the caller decides what that means
    """A blocking call was ended because its time was over."""


async def run_interruptible(
    call: Callable[[], _T],
    end: Callable[[anyio.Event], Awaitable[None]],
    *,
    seconds: float,
    stop: anyio.Event | None = None,
    limiter: anyio.CapacityLimiter | None = None,
) -> _T:
    """`call()` in a thread, which is always waited for.

    If `stop` is set, `seconds` are over or this task is cancelled, `end(over)` has to make the call return soon; `over`
    is set when it has. Raises what `call` raises, or `DeadlineExceeded` if it raises after `seconds`.
    """
    over = anyio.Event()
    stopped = stop or anyio.Event()
    outcome: list[_T] = []
    errors: list[Exception] = []
    late = False

    async def watch() -> None:
        nonlocal late
        try:
            with anyio.move_on_after(seconds) as scope:
                await stopped.wait()
            late = scope.cancelled_caught
        finally:
            if not over.is_set():
                with anyio.CancelScope(shield=True):
                    await end(over)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        try:
            # A thread cannot be cancelled: this waits for it, also while a cancellation is due.
            outcome.append(await to_thread.run_sync(call, limiter=limiter))
        except Exception as error:  # noqa: BLE001 - raised below, outside the group that would wrap it
            errors.append(error)
        finally:
            over.set()
            tasks.cancel_scope.cancel()
    if outcome:
        return outcome[0]
    raise DeadlineExceeded if late else errors[0]
