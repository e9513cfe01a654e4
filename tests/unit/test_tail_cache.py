"""Tests which copies of commits are kept, and which of them a later copy may continue."""

import anyio
import anyio.lowlevel
import pytest

from rebaser.runtime.tail_cache import MAX_MADE, MadeCheckpoint, Tail, TailCache
from rebaser_client.jetstream import StoredMessage
from rebaser_core.commit import CheckpointRef
from rebaser_core.ids import ChangeSetKey
from rebaser_core.thresholds import Thresholds, forced

MAIN, OTHER = ChangeSetKey("ws", "main"), ChangeSetKey("ws", "other")


def message(sequence: int) -> StoredMessage:
    return StoredMessage("commits", sequence, {}, b"", "")


def tail(after: int, until: int) -> Tail:
    return Tail(after, after + 1, message(until), 0, b"x" * 1000, None, ())


@pytest.fixture
def cache() -> TailCache:
    cache = TailCache()
    for key, after, until in ((MAIN, 0, 3), (MAIN, 0, 5), (MAIN, 4, 7), (MAIN, 4, 9), (OTHER, 4, 8)):
        cache.add(key, tail(after, until))
    return cache


@pytest.mark.parametrize(
    ("sequence", "after", "found"),
    [
        (9, 4, (4, 7)),  # the longest copy that is shorter
        (20, 4, (4, 9)),
        (20, 0, (0, 5)),  # a copy that begins after another checkpoint leads to another state
        (5, 0, (0, 3)),
        (7, 4, None),
        (20, 9, None),
    ],
)
def test_a_tail_is_continued_only_if_it_begins_where_the_longer_one_does(
    cache: TailCache, sequence: int, after: int, found: tuple[int, int] | None
) -> None:
    kept = cache.before(MAIN, sequence, after)
    assert (None if kept is None else (kept.after, kept.newest.sequence)) == found


def test_the_tails_that_were_used_least_recently_give_way(cache: TailCache) -> None:
    assert cache.get(MAIN, message(3)) is not None
    with forced(Thresholds(tail_cache_max_bytes=3 * tail(0, 1).memory)):
        cache.add(OTHER, tail(0, 10))
    kept = [(key, until) for key in (MAIN, OTHER) for until in range(12) if cache.get(key, message(until)) is not None]
    assert kept == [(MAIN, 3), (OTHER, 8), (OTHER, 10)]
    assert cache.memory == 3 * tail(0, 1).memory


def test_a_tail_that_is_added_again_takes_no_more_memory(cache: TailCache) -> None:
    """Otherwise, the count would grow until nothing is kept any more."""
    before = cache.memory
    for _ in range(3):
        cache.add(MAIN, tail(4, 9))
    assert cache.memory == before
    cache.drop(MAIN, 9)
    cache.drop(MAIN, 9)
    assert cache.memory == before - tail(4, 9).memory


@pytest.mark.anyio
async def test_each_time_one_reads_a_tail_the_others_wait_for_it() -> None:
    cache, readers, most = TailCache(), 0, 0

    async def read() -> None:
        nonlocal readers, most
        async with cache.reading(MAIN, message(3)) as kept:
            if kept is None:
                readers += 1
                most = max(most, readers)
                await anyio.wait_all_tasks_blocked()
                readers -= 1

    for _ in range(3):
        async with anyio.create_task_group() as group:
            for number in range(2):
                group.start_soon(read)
                if not number:
                    await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
    assert (readers, most) == (0, 1)


def test_a_checkpoint_is_found_as_long_as_the_parent_has_the_one_it_was_made_instead_of() -> None:
    cache, refs = TailCache(), [CheckpointRef(f"sha256:{number}", number, 1) for number in range(3)]
    made = MadeCheckpoint(message(5), refs[0], refs[1], ())
    cache.add_made(MAIN, False, made)
    assert cache.made(MAIN, False, refs[0]) is made
    assert cache.made(MAIN, False, refs[2]) is None, "the parent has a newer one"
    assert cache.made(MAIN, True, refs[0]) is cache.made(OTHER, False, refs[0]) is None
    for number in range(MAX_MADE):
        cache.add_made(ChangeSetKey("ws", f"b{number}"), False, made)
    assert cache.made(MAIN, False, refs[0]) is None, "not all are kept"
    assert cache.made(ChangeSetKey("ws", "b0"), False, refs[0]) is made
