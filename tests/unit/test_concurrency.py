"""Work on many items, a few at a time: after a failure no further item is begun, and those in progress are
completed."""

import anyio
import anyio.lowlevel
import pytest

from rebaser.runtime.concurrency import run_concurrently
from rebaser_core.errors import TransientError

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_all_items_are_done_at_most_so_many_at_once(limit: int) -> None:
    done, now, most = list[int](), 0, 0

    async def work(item: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.lowlevel.checkpoint()
        now -= 1
        done.append(item)

    await run_concurrently(range(20), work, limit)
    assert sorted(done) == list(range(20))
    assert most == min(limit, 20)


async def test_after_a_failure_nothing_is_begun_and_what_is_under_way_ends() -> None:
    begun, ended = list[int](), list[int]()

    async def work(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise TransientError("no answer")
        await anyio.wait_all_tasks_blocked()
        ended.append(item)

    with pytest.raises(TransientError):
        await run_concurrently(range(20), work, 3)
    assert begun == [0, 1, 2]
    assert sorted(ended) == [0, 1]
