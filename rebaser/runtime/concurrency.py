"""Does the same for many things, some of them at once."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import RebaserError

T = TypeVar("T")


async def run_concurrently(items: Iterable[T], do: Callable[[T], Awaitable[object]], at_once: int) -> None:
    """Await `do` for each of `items`, `at_once` of them at a time.

    After a `RebaserError` no more are begun, and it is raised as it is, free of any group, when those at work are done.
    """
    left = iter(items)
    failures: list[RebaserError] = []

    async def work() -> None:
        for item in left:  # shared: each takes the next
            if failures:
                return
            try:
                await do(item)
            except RebaserError as error:
                failures.append(error)

    async with flat_task_group() as group:
        for _ in range(at_once):
            group.start_soon(work)
    if failures:
        raise failures[0]
