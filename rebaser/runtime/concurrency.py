"""Calls a function for many items, but only for a limited number of them at the same time."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import RebaserError

T = TypeVar("T")


async def run_concurrently(items: Iterable[T], function: Callable[[T], Awaitable[object]], limit: int) -> None:
    """Await `function(item)` for each of `items`, at most `limit` at a time.

    After a `RebaserError`, start no further call. Raise the error when the calls in progress have ended.
    """
    remaining = iter(items)
    failures: list[RebaserError] = []

    async def work() -> None:
        for item in remaining:  # all workers share this iterator: each takes the next item
            if failures:
                return
            try:
                await function(item)
            except RebaserError as error:
                failures.append(error)

    async with flat_task_group() as group:
        for _ in range(limit):
            group.start_soon(work)
    if failures:
        raise failures[0]
