"""Decided requests are deleted, even if the stream is unavailable for a while."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from rebaser.runtime import request_deleter as deleting
from rebaser.runtime.request_deleter import GROUP, RequestDeleter
from rebaser_client.jetstream import ApiError
from rebaser_client.jetstream.errors import DELETE_FAILED
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.thresholds import Thresholds, forced

pytestmark = pytest.mark.anyio

CREATED = "2026-01-01T00:00:00Z"


class Stream:
    """A stream that deletes messages, except in the calls whose numbers are in `fails`."""

    def __init__(self, fails: set[int]) -> None:
        self.fails = fails
        self.created = CREATED
        self.last = 10_000
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

    async def stream_info(self, _: str) -> Any:
        return SimpleNamespace(created=self.created, last_sequence=self.last)


@pytest.mark.parametrize("fails", [set(), {1}, {2}, {3}, {1, 2, 3, 4, 5}])
async def test_a_group_that_failed_is_deleted_later(monkeypatch: pytest.MonkeyPatch, fails: set[int]) -> None:
    monkeypatch.setattr(deleting, "RETRY", 0.0)
    stream = Stream(fails)
    deleter = RequestDeleter(cast("Any", stream), "requests")
    sequences = range(1, 2 * GROUP + 2)
    deleter.add(sequences, CREATED)
    assert deleter.queued == len(sequences)
    with anyio.fail_after(60):
        await deleter.flush()
    assert (stream.deleted, deleter.queued) == (set(sequences), 0)
    assert stream.calls == 3 + len(fails)


async def test_what_is_added_while_others_are_deleted_is_deleted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "RETRY", 0.0)
    monkeypatch.setattr(deleting, "GATHER", 0.0)
    stream = Stream({1})
    deleter = RequestDeleter(cast("Any", stream), "requests")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(deleter.run)
            for wanted in (1, 2, 3):
                stream.wanted, stream.done = wanted, anyio.Event()
                deleter.add([wanted], CREATED)
                await stream.done.wait()
            group.cancel_scope.cancel()
    assert stream.deleted == {1, 2, 3}


async def test_what_was_lost_with_the_stream_is_not_deleted_from_the_new_one() -> None:
    stream = Stream(set())
    deleter = RequestDeleter(cast("Any", stream), "requests")
    deleter.add([1, 2], CREATED)
    deleter.clear()
    deleter.add([3], CREATED)
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
    deleter.add([1], CREATED)
    await deleter.flush()
    assert ["no space left" in reason for reason in told] == [True, True, False]
    assert told[-1] == ""


class Purgeable(Stream):
    """A stream with `messages` and `consumers`. If `refusal` is given, it refuses purges."""

    def __init__(self, messages: set[int], consumers: int = 0, refusal: RebaserError | None = None) -> None:
        super().__init__(set())
        self.messages = messages
        self.consumers = consumers
        self.refusal = refusal
        self.purges: list[int] = []

    async def delete_many(self, _: str, sequences: Sequence[int]) -> None:
        await super().delete_many(_, sequences)
        self.messages -= set(sequences)

    async def stream_info(self, _: str) -> Any:
        first = min(self.messages, default=100)
        return SimpleNamespace(
            created=self.created, first_sequence=first, last_sequence=self.last, consumers=self.consumers
        )

    async def purge(self, _: str, *, sequence: int) -> None:
        self.purges.append(sequence)
        if self.refusal is not None:
            raise self.refusal
        self.messages = {message for message in self.messages if message >= sequence}


async def delete_until_idle(deleter: RequestDeleter) -> None:
    """Run `deleter` until nothing is queued."""
    async with anyio.create_task_group() as group:
        group.start_soon(deleter.run)
        with anyio.fail_after(60):
            while deleter.queued:  # noqa: ASYNC110 - nothing tells
                await anyio.sleep(0.001)
        group.cancel_scope.cancel()


async def test_decided_requests_that_are_the_oldest_are_purged_up_to_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deleting, "GATHER", 0.001)
    stream = Purgeable({*range(2, 10), 12})
    deleter = RequestDeleter(cast("Any", stream), "requests")
    deleter.add([8, 3, 2, 4, 6, 5, 9], CREATED)
    with forced(Thresholds(purge_min_requests=5)):
        await delete_until_idle(deleter)
    assert (stream.purges, stream.deleted, stream.messages) == ([7], {8, 9}, {7, 12})


async def test_what_a_purge_left_is_purged_once_it_is_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "GATHER", 0.0)
    stream = Purgeable(set(range(1, 10)))
    deleter = RequestDeleter(cast("Any", stream), "requests")
    purge = stream.purge

    async def purge_while_another_is_decided(name: str, *, sequence: int) -> None:
        await purge(name, sequence=sequence)
        if sequence == 4:
            deleter.add([4], CREATED)

    monkeypatch.setattr(stream, "purge", purge_while_another_is_decided)
    deleter.add([1, 2, 3, 5, 6, 7], CREATED)
    with forced(Thresholds(purge_min_requests=3)):
        await delete_until_idle(deleter)
    assert (stream.purges, stream.calls, stream.messages) == ([4, 8], 0, {8, 9})


@pytest.mark.parametrize(
    ("messages", "consumers"), [({1, 2, 3, 4, 5}, 0), ({2, 3, 5}, 0), ({2, 3, 4, 5}, 16)], ids=["older", "few", "cost"]
)
async def test_requests_are_deleted_one_by_one_if_a_purge_would_delete_others_or_cost_more(
    monkeypatch: pytest.MonkeyPatch, messages: set[int], consumers: int
) -> None:
    monkeypatch.setattr(deleting, "GATHER", 0.0)
    stream = Purgeable(messages, consumers)
    deleter = RequestDeleter(cast("Any", stream), "requests")
    added = messages - {1}
    deleter.add(added, CREATED)
    with forced(Thresholds(purge_min_requests=4)):
        await delete_until_idle(deleter)
    assert (stream.purges, stream.deleted) == ([], added)


@pytest.mark.parametrize(
    "refusal", [NotAllowed("publish", "purge"), ApiError(500, 10052, "stream does not allow purges")]
)
async def test_requests_are_deleted_one_by_one_if_nats_refuses_to_purge(
    monkeypatch: pytest.MonkeyPatch, refusal: RebaserError
) -> None:
    monkeypatch.setattr(deleting, "GATHER", 0.0)
    stream = Purgeable(set(range(1, 7)), refusal=refusal)
    deleter = RequestDeleter(cast("Any", stream), "requests")
    with forced(Thresholds(purge_min_requests=3)):
        for added in ([1, 2, 3], [4, 5, 6]):
            deleter.add(added, CREATED)
            await delete_until_idle(deleter)
    assert (stream.purges, stream.deleted) == ([4], set(range(1, 7)))


async def test_a_purge_that_failed_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleting, "GATHER", 0.0)
    monkeypatch.setattr(deleting, "NO_PURGE", 0.0)
    stream = Purgeable(set(range(1, 7)), refusal=TransientError("no answer"))
    deleter = RequestDeleter(cast("Any", stream), "requests")
    with forced(Thresholds(purge_min_requests=3)):
        for added in ([1, 2, 3], [4, 5, 6]):
            deleter.add(added, CREATED)
            await delete_until_idle(deleter)
            stream.refusal = None
    assert (stream.purges, stream.deleted) == ([4, 7], {1, 2, 3})


@pytest.mark.parametrize(
    ("created", "last"), [("2026-02-02T00:00:00Z", 10_000), (CREATED, 2)], ids=["recreated", "set back"]
)
async def test_what_belongs_to_a_stream_that_was_replaced_is_not_purged_from_the_new_one(
    monkeypatch: pytest.MonkeyPatch, created: str, last: int
) -> None:
    """A purge up to a sequence above the end of a stream deletes all its messages."""
    monkeypatch.setattr(deleting, "GATHER", 0.0)
    stream = Purgeable({1, 2})
    stream.created, stream.last = created, last
    deleter = RequestDeleter(cast("Any", stream), "requests")
    deleter.add([1, 2, 3], CREATED)
    with forced(Thresholds(purge_min_requests=3)):
        await delete_until_idle(deleter)
    assert (stream.purges, stream.deleted, stream.messages) == ([], set(), {1, 2})


@pytest.mark.parametrize(("created", "last"), [("2026-02-02T00:00:00Z", 10_000), (CREATED, 2)])
async def test_what_could_not_be_deleted_before_the_stream_was_replaced_is_dropped(
    monkeypatch: pytest.MonkeyPatch, created: str, last: int
) -> None:
    monkeypatch.setattr(deleting, "RETRY", 0.0)
    stream = Stream({1})
    stream.created, stream.last = created, last
    deleter = RequestDeleter(cast("Any", stream), "requests")
    deleter.add([1, 2, 3], CREATED)
    with anyio.fail_after(60):
        await deleter.flush()
    assert (stream.calls, stream.deleted, deleter.queued) == (1, set(), 0)


async def test_sequences_of_another_stream_replace_those_that_wait() -> None:
    stream = Stream(set())
    deleter = RequestDeleter(cast("Any", stream), "requests")
    deleter.add([1, 2], CREATED)
    deleter.add([3], "2026-02-02T00:00:00Z")
    await deleter.flush()
    assert stream.deleted == {3}


async def test_more_requests_are_awaited_while_enough_for_a_cheap_purge_are_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deleting, "GATHER", 0.001)
    monkeypatch.setattr(deleting, "GATHER_MAX", 3600.0)
    stream = Purgeable(set(range(1, 100)))
    deleter = RequestDeleter(cast("Any", stream), "requests")
    enough = 4 * deleting.ENOUGH
    with forced(Thresholds(purge_min_requests=4)):
        async with anyio.create_task_group() as group:
            group.start_soon(deleter.run)
            deleter.add(range(1, enough), CREATED)
            await anyio.sleep(0.05)
            assert (stream.purges, deleter.queued) == ([], enough - 1)
            deleter.add([enough], CREATED)
            with anyio.fail_after(60):
                while deleter.queued:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.001)
            group.cancel_scope.cancel()
    assert (stream.purges, stream.calls) == ([enough + 1], 0)


@pytest.mark.parametrize("why", ["slow", "late", "refused", "others"])
async def test_no_more_requests_are_awaited_if_no_purge_is_expected(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Because too few are coming, because the first has waited for long enough, because NATS refuses purges, or because
    most of those before were not the oldest in the stream."""
    monkeypatch.setattr(deleting, "GATHER", 0.001)
    monkeypatch.setattr(deleting, "GATHER_MAX", 0.001 if why == "late" else 3600.0)
    stream = Purgeable({1, 2, 3, 4, 5})
    deleter = RequestDeleter(cast("Any", stream), "requests")
    with forced(Thresholds(purge_min_requests=10**9 if why == "slow" else 4)):
        if why == "refused":
            deleter._purge_after = anyio.current_time() + 3600
        if why == "others":
            stream.messages |= {10, 11, 12, 13}
            deleter.add([10, 11, 12, 13], CREATED)
            assert not await deleter._purge_oldest()
            await deleter.flush()
            stream.deleted.clear()
        deleter.add([2, 3, 4, 5], CREATED)
        await delete_until_idle(deleter)
    assert (stream.purges, stream.deleted) == ([], {2, 3, 4, 5})
