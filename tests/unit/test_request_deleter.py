"""Decided requests are deleted, even if the stream is unavailable for a while."""

from collections.abc import Sequence
from typing import Any, cast

import anyio
import pytest

from rebaser.runtime import request_deleter as deleting
from rebaser.runtime.request_deleter import GROUP, RequestDeleter
from rebaser_client.jetstream import ApiError
from rebaser_client.jetstream.errors import DELETE_FAILED
from rebaser_core.errors import TransientError

pytestmark = pytest.mark.anyio


class Stream:
    """A stream that deletes messages, except in the calls whose numbers are in `fails`."""

    def __init__(self, fails: set[int]) -> None:
        self.fails = fails
        self.calls = 0
        self.deleted: set[int] = set()
        self.wanted = 0
        self.done = anyio.Event()

    async def delete_many(self, _: str, sequences: Sequence[int]) -> None:
        self.calls += 1
        if self.calls in self.fails:
            raise TransientError("no answer")
        self.deleted.update(sequences)
        if len(self.deleted) >= self.wanted:
            self.done.set()


@pytest.mark.parametrize("fails", [set(), {1}, {2}, {3}, {1, 2, 3, 4, 5}])
async def test_a_group_that_failed_is_deleted_later(monkeypatch: pytest.MonkeyPatch, fails: set[int]) -> None:
    monkeypatch.setattr(deleting, "RETRY", 0.0)
    stream = Stream(fails)
    deleter = RequestDeleter(cast("Any", stream), "requests")
    sequences = range(1, 2 * GROUP + 2)
    deleter.add(sequences)
    assert deleter.queued == len(sequences)
    with anyio.fail_after(30):
        await deleter.flush()
    assert (stream.deleted, deleter.queued) == (set(sequences), 0)
    assert stream.calls == 3 + len(fails)


async def test_what_is_added_while_others_are_deleted_is_deleted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "RETRY", 0.0)
    monkeypatch.setattr(deleting, "GATHER", 0.0)
    stream = Stream({1})
    deleter = RequestDeleter(cast("Any", stream), "requests")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(deleter.run)
            for wanted in (1, 2, 3):
                stream.wanted, stream.done = wanted, anyio.Event()
                deleter.add([wanted])
                await stream.done.wait()
            group.cancel_scope.cancel()
    assert stream.deleted == {1, 2, 3}


async def test_what_was_lost_with_the_stream_is_not_deleted_from_the_new_one() -> None:
    stream = Stream(set())
    deleter = RequestDeleter(cast("Any", stream), "requests")
    deleter.add([1, 2])
    deleter.clear()
    deleter.add([3])
    await deleter.flush()
    assert stream.deleted == {3}


async def test_a_refusal_of_nats_is_told_until_messages_are_deleted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of nats-server may be full while no other message of the server is refused."""
    monkeypatch.setattr(deleting, "RETRY", 0.0)
    stream, told = Stream(set()), list[str]()

    async def delete_many(*_: object) -> None:
        if len(told) < 2:
            raise ApiError(500, DELETE_FAILED, "write 1.blk: no space left on device")

    monkeypatch.setattr(stream, "delete_many", delete_many)
    deleter = RequestDeleter(cast("Any", stream), "requests", told.append)
    deleter.add([1])
    await deleter.flush()
    assert ["no space left" in reason for reason in told] == [True, True, False]
    assert told[-1] == ""
