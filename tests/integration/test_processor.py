"""Tests which requests share a commit, and when a dead request is answered."""

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest

from rebaser.change_set.attempts.held_requests import QueueBlocked
from rebaser.change_set.attempts.poison import recorded_attempt
from rebaser.change_set.log import checkpointer
from rebaser.change_set.serial_dvu import SerialDvu
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_core.blobs.address import address_of
from rebaser_core.commit import Attempt, Kind
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.errors import TransientError
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode, encode_updates_blob
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Recompute, Set, Update
from tests.support.owners import Engine
from tests.support.poison import KEY, Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

ROOM = 2048  # bytes of blobs in one commit


@pytest.fixture
def fleet(js: JetStream, subjects: Subjects) -> Fleet:
    fleet = Fleet(js, subjects)
    settings = fleet.context.settings.model_copy(update={"batch_max_bytes": ROOM, "batch_max_requests": 32})
    fleet.context = replace(fleet.context, settings=settings)
    return fleet


async def send_blob(fleet: Fleet, id_: str, data: bytes, inbox: str | None = None) -> None:
    """Send a request whose updates are in a blob of `data`."""
    await fleet.context.blobs.put(data)
    headers, payload = encode(
        EnqueueUpdatesRequest(RequestId(id_), KEY.workspace, KEY.change_set, None, address_of(data))
    )
    if inbox is not None:
        headers[REPLY_INBOX] = inbox
    await fleet.js.publish(fleet.subjects.requests(KEY), payload, headers)


async def send_request(fleet: Fleet, id_: str, *updates: Update, recompute: Recompute | None = None) -> None:
    headers, payload = encode(
        EnqueueUpdatesRequest(RequestId(id_), KEY.workspace, KEY.change_set, updates, recompute=recompute)
    )
    await fleet.js.publish(fleet.subjects.requests(KEY), payload, headers)


async def test_each_commit_tells_the_sweeper_whether_an_update_is_owed(fleet: Fleet) -> None:
    """Otherwise, a change set whose owner died would stay stale, or would be woken again and again for nothing."""
    engine, owed = Engine(), list[bool]()
    engine.go.set()
    context = replace(fleet.context, engine=cast("Any", engine))

    async with fleet.owner(redelivered=False) as owner:
        commits, processor = owner.commits, owner.processor

        async def follow() -> None:
            last = await fleet.js.last(fleet.subjects.commits_stream, fleet.subjects.commits(KEY))
            assert last is not None
            assert last.sequence == commits.state.last
            assert (int(last.headers["X-Debt"]) > 0) is commits.state.owes
            assert (commits.state.covers < last.sequence) is commits.state.owes
            owed.append(commits.state.owes)

        async def decide(*, held: bool = False) -> None:
            subject, after = fleet.subjects.requests(KEY), processor.applied.sequence + 1
            async with OrderedConsumer(fleet.js, fleet.subjects.requests_stream, subject, start=after) as consumer:
                await consumer.wait()
                with pytest.raises(QueueBlocked) if held else nullcontext():
                    await processor.process(consumer.take(1))
            assert processor.applied.sequence == (after - 1 if held else after)
            await follow()

        async def update() -> None:
            await SerialDvu(context, commits, redelivered=True, hung=lambda: False).run()
            await follow()

        await send_request(fleet, "value", Set("a", 1))
        await decide()
        await send_request(fleet, "graph", Derive("double", "sum", {"of": ("a", "a")}))
        await decide()
        await send_blob(fleet, "dead", b"no updates")  # nothing is edited
        await decide()
        await checkpointer.write(context, commits)
        await follow()
        async with recorded_attempt(context, commits, Attempt(99, 0, 1), lambda: False):
            await follow()
        await follow()
        await update()
        await checkpointer.write(context, commits)
        await follow()
        await send_request(fleet, "again", recompute=Recompute())
        await decide()
        await fleet.send("new", X_MESSAGE_VERSION="99")
        await decide(held=True)
        await update()
    assert owed == [False, *[True] * 5, False, False, True, True, False]


async def test_a_large_blob_fills_its_own_commit_and_no_later_one(fleet: Fleet) -> None:
    large = encode_updates_blob([Set("large", "x" * 2 * ROOM)])
    small = encode_updates_blob([Set("small", 1)])
    await fleet.send("a", "b")
    await send_blob(fleet, "large", large)
    await fleet.send("c", "d")
    await send_blob(fleet, "e", small)
    await fleet.send("f")
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
    assert await fleet.log() == [(Kind.REBASE, ["a", "b", "large"]), (Kind.REBASE, ["c", "d", "e", "f"])]
    await fleet.context.deleter.flush()
    assert await fleet.js.last(fleet.subjects.requests_stream, fleet.subjects.requests(KEY)) is None


async def test_many_decided_requests_are_deleted_by_one_purge_up_to_a_dead_request_that_is_not_copied_yet(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue then delivers later requests as if nothing had been deleted."""
    monkeypatch.setattr(fleet.js, "delete_many", None)  # deletes one by one
    stream, subject, deleter = fleet.subjects.requests_stream, fleet.subjects.requests(KEY), fleet.context.deleter
    await fleet.send("a", "b", "c")
    await send_blob(fleet, "dead", b"no updates")
    await fleet.send("d")
    async with OrderedConsumer(fleet.js, stream, subject) as queue, fleet.owner(redelivered=False) as owner:
        [pending] = (await owner.processor.process(owner.queued)).dead
        with forced(Thresholds(purge_min_requests=3)):
            async with anyio.create_task_group() as group:
                group.start_soon(deleter.run)
                with anyio.fail_after(60):
                    while (await fleet.js.stream_info(stream)).first_sequence < pending.decision.sequence:  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                group.cancel_scope.cancel()
        assert (await fleet.js.stream_info(stream)).messages == 2
        await fleet.send("e")
        with anyio.fail_after(60):
            assert [(await anext(queue)).stream_sequence for _ in range(6)] == [1, 2, 3, 4, 5, 6]


async def test_what_a_dead_owner_decided_but_did_not_delete_is_done_with_before_the_suspects(fleet: Fleet) -> None:
    """This holds even if there are several batches: no other process handles these requests before the next sweep."""
    subject = fleet.subjects.requests(KEY)
    for id_ in ("first", "second"):  # no batch has room for both
        await send_blob(fleet, id_, encode_updates_blob([Set(id_, "x" * 2 * ROOM)]))
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
    fleet.context.deleter.clear()  # the owner dies
    await fleet.send("suspect")
    async with fleet.owner(redelivered=True) as owner:
        async with OrderedConsumer(fleet.js, fleet.subjects.requests_stream, subject) as consumer:
            queued: list[Message] = []
            while len(queued) < 3:
                await consumer.wait()
                queued += consumer.take(3)
        owner.queued = queued
        assert await owner.decide_all() == []
    assert [ids for kind, ids in await fleet.log() if kind is Kind.REBASE] == [["first"], ["second"], ["suspect"]]
    await fleet.context.deleter.flush()
    assert await fleet.js.last(fleet.subjects.requests_stream, subject) is None


async def test_a_reply_that_cannot_be_sent_holds_up_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision is in the log, where the client gets it when it sends the request again."""
    connection = fleet.js.connection
    publish, lost = connection.publish_soon, list[str]()

    def lose_replies(subject: str, *given: Any, **more: Any) -> bool:
        if subject == inbox:
            lost.append(subject)
            raise TransientError("the connection is gone")
        return publish(subject, *given, **more)

    inbox = connection.new_inbox()
    monkeypatch.setattr(connection, "publish_soon", lose_replies)
    await send_blob(fleet, "dead", b"no updates", inbox)
    for id_ in ("one", "two"):
        await send_blob(fleet, id_, encode_updates_blob([Set(id_, 1)]), inbox)
    async with fleet.owner(redelivered=False) as owner:
        [pending] = (await owner.processor.process(owner.queued)).dead
        await owner.processor.publish_dead_letter(pending)
    assert len(lost) == 3
    assert await fleet.log() == [(Kind.REBASE, ["dead", "one", "two"])]
    await fleet.context.deleter.flush()
    assert await fleet.js.last(fleet.subjects.requests_stream, fleet.subjects.requests(KEY)) is None


async def test_a_dead_request_that_its_owner_left_behind_is_answered_from_the_commit_that_decided_it(
    fleet: Fleet,
) -> None:
    await send_blob(fleet, "dead", b"no updates")
    async with fleet.owner(redelivered=False) as first:
        messages = first.queued
        [pending] = (await first.processor.process(messages)).dead
        await send_request(fleet, "later", Set("a", 1))
    async with fleet.owner(redelivered=False) as second:
        assert await second.decide_all() == []
        assert second.commits.state.last > pending.commit
        [again] = (await second.processor.process(messages)).dead
    assert again.commit == pending.commit


async def test_all_are_answered_however_much_waits_to_be_sent(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = fleet.js.connection
    publish, flush, said = connection.publish_soon, connection.flush, list[str]()

    def full(subject: str, *given: Any, **more: Any) -> bool:
        publish(subject, *given, **more)
        if subject == inbox:
            said.append("reply")
        return subject != inbox or len(said) > 1  # Only the first answer said that too many messages wait.

    async def flushed() -> None:
        said.append("flush")
        await flush()

    inbox = connection.new_inbox()
    monkeypatch.setattr(connection, "publish_soon", full)
    monkeypatch.setattr(connection, "flush", flushed)
    for id_ in ("one", "two", "three"):
        await send_blob(fleet, id_, encode_updates_blob([Set(id_, 1)]), inbox)
    async with fleet.owner(redelivered=False) as owner:
        assert (await owner.processor.process(owner.queued)).dead == []
    assert said == ["reply", "reply", "reply", "flush"]


@pytest.mark.parametrize("woken", [0, 30, 59])
async def test_an_update_is_owed_wherever_in_a_large_request_the_edit_stands_that_asks_for_it(
    fleet: Fleet, woken: int
) -> None:
    engine = Engine()
    engine.go.set()
    await send_request(fleet, "graph", Derive("double", "sum", {"of": (f"v{woken}", f"v{woken}")}))
    async with fleet.owner(redelivered=False) as owner:
        await owner.decide_all()
        context = replace(fleet.context, engine=cast("Any", engine))
        await SerialDvu(context, owner.commits, redelivered=False, hung=lambda: False).run()
        assert not owner.commits.state.owes
    await send_request(fleet, "values", *(Set(f"v{at}", 1) for at in range(60)))
    async with fleet.owner(redelivered=False) as owner:
        with forced(Thresholds(fold_step=20)):
            await owner.decide_all()
        assert owner.commits.state.owes


async def test_a_copy_of_a_decided_request_holds_nobody_up_though_its_blob_is_gone(fleet: Fleet) -> None:
    """The content does not matter any more: the outcome is in the log."""
    data = encode_updates_blob([Set("a", 1)])
    await send_blob(fleet, "once", data)
    await fleet.send("beside")  # so that the log has the content of the blob, and does not name it
    async with fleet.owner(redelivered=False) as owner:
        await owner.decide_all()
    await send_blob(fleet, "once", data)
    await fleet.js.purge(f"OBJ_{fleet.subjects.blobs_bucket}")
    await fleet.send("next")
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
    assert await fleet.log() == [(Kind.REBASE, ["once", "beside"]), (Kind.REBASE, ["next"])]


async def test_a_dead_request_sent_again_is_answered_when_its_copy_is_stored(fleet: Fleet) -> None:
    connection = fleet.js.connection
    inbox = connection.new_inbox()
    for _ in range(2):
        await send_blob(fleet, "dead", b"no updates", inbox)
    with anyio.fail_after(60):
        async with connection.subscribe(inbox) as replies, fleet.owner(redelivered=False) as owner:
            first, again = owner.queued
            [pending] = (await owner.processor.process([first])).dead
            assert (await owner.processor.process([again])).dead == []
            await connection.publish(inbox, b"nobody was told before this")
            assert (await anext(replies)).data == b"nobody was told before this"
            await owner.processor.publish_dead_letter(pending)
            assert len([await anext(replies) for _ in range(2)]) == 2
            await fleet.context.deleter.flush()
            assert await fleet.js.last(fleet.subjects.requests_stream, fleet.subjects.requests(KEY)) is None
            await owner.processor.process([again])  # at once from now on
            await anext(replies)


async def test_a_request_under_the_id_of_another_is_copied_before_it_is_answered_and_deleted(fleet: Fleet) -> None:
    connection, subjects = fleet.js.connection, fleet.subjects
    inbox = connection.new_inbox()
    await fleet.send("once")
    await send_blob(fleet, "once", encode_updates_blob([Set("other", 1)]), inbox)
    with anyio.fail_after(60):
        async with connection.subscribe(inbox) as replies, fleet.owner(redelivered=False) as owner:
            [pending] = (await owner.processor.process(owner.queued)).dead
            assert (pending.decision.code, pending.commit) == ("request_id_reused", 1)
            await connection.publish(inbox, b"nobody was told before this")
            assert (await anext(replies)).data == b"nobody was told before this"
            assert await fleet.js.get(subjects.requests_stream, pending.message.stream_sequence) is not None
            await owner.processor.publish_dead_letter(pending)
            copy = await fleet.js.last(subjects.dlq_stream, subjects.dlq(KEY))
            assert copy is not None
            assert copy.data == pending.message.data
            await anext(replies)
    assert await fleet.log() == [(Kind.REBASE, ["once"])]


async def test_what_stood_behind_a_request_that_was_given_up_waits_no_longer(fleet: Fleet) -> None:
    """A newer server could have come in that time. Otherwise, each of many requests would hold the queue for as
    long."""
    fleet.now_ms = time.time_ns() // 1_000_000
    await fleet.send("new", "newer", X_MESSAGE_VERSION="99")
    async with fleet.owner(redelivered=False) as owner:
        with pytest.raises(QueueBlocked):
            await owner.decide_all()
    await fleet.send("good")
    fleet.now_ms += int((fleet.context.settings.retry_for + 600) * 1000)  # much, as storing it may take seconds
    async with fleet.owner(redelivered=False) as owner:
        assert len(await owner.decide_all()) == 2
    assert await fleet.log() == [(Kind.ATTEMPT, []), (Kind.REBASE, ["@1", "@2", "good"])]


async def test_a_request_that_time_may_mend_waits_for_its_time_in_all_however_often_it_is_tried(fleet: Fleet) -> None:
    fleet.now_ms = started = time.time_ns() // 1_000_000
    seconds = fleet.context.settings.retry_for
    await fleet.send("new", X_MESSAGE_VERSION="99")
    await fleet.send("good")
    for waited in (0.0, 0.5, 0.9, 0.99):
        fleet.now_ms = started + int(waited * seconds * 1000)
        async with fleet.owner(redelivered=False) as owner:
            with pytest.raises(QueueBlocked) as blocked:
                await owner.decide_all()
            assert blocked.value.time_left == pytest.approx((1 - waited) * seconds, abs=0.01)
    fleet.now_ms = started + int(seconds * 1000)
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == ["unsupported_version"]
    assert (await fleet.log())[-1] == (Kind.REBASE, ["@1", "good"])


async def test_a_commit_is_not_before_the_last_of_its_requests_however_late_the_clock(fleet: Fleet) -> None:
    fleet.now_ms = 1_000
    await fleet.send("first")
    time.sleep(0.002)  # noqa: ASYNC251 - NATS stores the next request at least a millisecond later
    await fleet.send("last")
    async with fleet.owner(redelivered=False) as owner:
        *_, last = owner.queued
        await owner.decide_all()
        assert owner.commits.state.outcomes.of(RequestId("last")).at_ms == last.timestamp_ns // 1_000_000


HOUR = 3_600_000  # milliseconds; more than the retry window


@pytest.mark.parametrize(
    ("first", "then"), [(-HOUR, 0), (0, HOUR)], ids=["the first clock is an hour behind", "the second is an hour ahead"]
)
async def test_a_request_sent_twice_is_decided_once_however_wrong_the_clocks(
    fleet: Fleet, first: int, then: int
) -> None:
    """How long outcomes are remembered depends only on the times at which NATS stored the requests."""
    fleet.now_ms = time.time_ns() // 1_000_000 + first
    await fleet.send("once")
    async with fleet.owner(redelivered=False) as owner:
        await owner.decide_all()
    fleet.now_ms = time.time_ns() // 1_000_000 + then
    await fleet.send("other")
    async with fleet.owner(redelivered=False) as owner:
        await owner.decide_all()
    await fleet.send("once", Nats_Msg_Id=f"{KEY}.once#again")
    async with fleet.owner(redelivered=False) as owner:
        await owner.decide_all()
    assert [ids for _, ids in await fleet.log()] == [["once"], ["other"]]


async def test_requests_that_are_too_many_for_one_commit_take_several(
    fleet: Fleet, js: JetStream, subjects: Subjects
) -> None:
    """Messages of 4 KiB are kept in the commit, so about 250 of them are more than NATS accepts."""
    settings = fleet.context.settings.model_copy(update={"batch_max_requests": 1_000})
    fleet.context = replace(fleet.context, settings=settings)
    ids = [f"r{number}" for number in range(400)]
    for id_ in ids:
        request = EnqueueUpdatesRequest(
            RequestId(id_), KEY.workspace, KEY.change_set, (Set("a", id_),), message="\U0001f389" * 1024
        )
        headers, payload = encode(request)
        await js.publish(subjects.requests(KEY), payload, headers)
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
        assert (stood := owner.commits.state.cells.edit_of("a")) is not None
        assert stood == Set("a", "r399")
    decided = [ids for _, ids in await fleet.log()]
    assert [id_ for group in decided for id_ in group] == ids
    assert 2 <= len(decided) <= 4
