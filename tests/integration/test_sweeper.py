"""Who waits for an owner and has no task gets one, from exactly one server of the fleet while all goes well."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import anyio
import pytest

from rebaser.runtime.dead_letters import DeadLetterPublisher
from rebaser.sweeper.old_history import OldHistory
from rebaser.sweeper.sweeper import Sweeper
from rebaser.sweeper.unroutable import UNROUTABLE_KEY, UnroutableMessages
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.admin.status import key_counts
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import Connection, JetStream, Message, NoAnswerError, OrderedConsumer, PullMessage
from rebaser_client.jetstream.infos import PubAck, StreamInfo
from rebaser_client.log.commits import CommitReader
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey, ulid
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import SWEEP_CONSUMER, TopologyOptions
from tests.fuzz.wire import RawPublisher

pytestmark = pytest.mark.anyio

A, B, C = (ChangeSetKey("ws", name) for name in "abc")


class Log:
    """Writes commits that owe, or do not owe, a dependent values update."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.js = js
        self.subjects = subjects
        self.previous: dict[ChangeSetKey, int] = {}

    async def append(self, key: ChangeSetKey, debt: int) -> None:
        previous = self.previous.get(key, 0)
        commit = Commit(
            id=ulid(1, bytes(10)),
            previous=previous,
            kind=Kind.REBASE,
            at_ms=1,
            owner="test",
            applied=None,
            covers=None,
            debt=debt,
        )
        headers, payload = encode_commit(commit)
        ack = await self.js.publish(self.subjects.commits(key), payload, headers)
        self.previous[key] = ack.sequence


def new_sweeper(js: JetStream, subjects: Subjects) -> Sweeper:
    blobs = open_blobs(None, js, subjects.blobs_bucket)
    letters = DeadLetterPublisher(js, subjects, blobs, "test")
    unroutable = UnroutableMessages(js, subjects, letters, lambda: 1)
    history = OldHistory(js, subjects, CommitReader(js, subjects, blobs), 86_400.0)
    return Sweeper(js, subjects, 0.5, unroutable, history)


@pytest.fixture
def log(js: JetStream, subjects: Subjects, topology: TopologyOptions) -> Log:
    return Log(js, subjects)


@pytest.fixture
def sweeper(js: JetStream, subjects: Subjects, topology: TopologyOptions) -> Sweeper:
    return new_sweeper(js, subjects)


async def tasks(js: JetStream, subjects: Subjects) -> set[ChangeSetKey]:
    return set(await key_counts(js, subjects, subjects.tasks_stream, "tasks"))


async def drop_tasks(js: JetStream, subjects: Subjects) -> None:
    await js.purge(subjects.tasks_stream, f"{subjects.root}.tasks.*.*.process")


async def test_nothing_waits_nothing_is_published(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    assert await sweeper.sweep() == 0
    await log.append(A, debt=0)
    assert await sweeper.sweep() == 0
    assert await tasks(js, subjects) == set()


async def test_a_request_without_a_task_gets_one(sweeper: Sweeper, js: JetStream, subjects: Subjects) -> None:
    for key in (A, B):
        await js.publish(subjects.requests(key), b"")
    await publish_task(js, subjects, B)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A, B}
    assert await sweeper.sweep() == 0


async def test_a_request_that_is_decided_during_the_sweep_gets_no_task(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that creates a change set ends at once. A task for it would have all values loaded for nothing."""
    names = Sweeper._names
    await log.append(C, debt=1)

    async def read(self: Sweeper, stream: str, head: str, tail: str) -> set[str]:
        if stream == subjects.tasks_stream:
            await js.purge(subjects.requests_stream, subjects.requests(A))
        return await names(self, stream, head, tail)

    monkeypatch.setattr(Sweeper, "_names", read)
    for key in (A, B):
        await js.publish(subjects.requests(key), b"")
    assert await sweeper.sweep() == 2
    assert await tasks(js, subjects) == {B, C}


async def test_debt_without_a_task_gets_one(sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log) -> None:
    await log.append(A, debt=3)
    await log.append(B, debt=1)
    await log.append(B, debt=0)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A}


async def test_debts_are_followed_from_sweep_to_sweep(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    await log.append(A, debt=1)
    assert await sweeper.sweep() == 1
    await drop_tasks(js, subjects)
    await log.append(A, debt=0)
    await log.append(B, debt=1)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {B}
    assert await sweeper.sweep() == 0, "its task is there"
    await drop_tasks(js, subjects)
    assert await sweeper.sweep() == 1, "a debt stays one until a commit says otherwise"


async def test_headers_that_are_late_are_waited_for(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence alone does not tell that there are no more."""
    take, late = OrderedConsumer.take, [True]

    def take_late(self: OrderedConsumer, count: int) -> list[Message]:
        return [] if late and late.pop() else take(self, count)

    monkeypatch.setattr("rebaser.sweeper.debts.SILENCE", 0.0)
    monkeypatch.setattr(OrderedConsumer, "pending", 0)
    monkeypatch.setattr(OrderedConsumer, "take", take_late)
    await log.append(A, debt=1)
    with anyio.fail_after(30):
        assert await sweeper.sweep() == 1


async def test_a_log_that_went_back_is_read_anew(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was restored from an older backup: it is the same stream, and ends below what was read of it."""
    real, ahead = JetStream.stream_info, 10

    async def stream_info(self: JetStream, name: str) -> StreamInfo:
        info = await real(self, name)
        return replace(info, last_sequence=info.last_sequence + ahead)

    with monkeypatch.context() as patch:
        patch.setattr(JetStream, "stream_info", stream_info)
        await log.append(A, debt=1)
        assert await sweeper.sweep() == 1
    await log.append(B, debt=1)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A, B}


async def test_what_was_deleted_at_the_end_is_not_waited_for(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    await log.append(A, debt=1)
    await log.append(B, debt=1)
    await js.delete_message(subjects.commits_stream, log.previous[B])
    with anyio.fail_after(30):
        assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A}
    await log.append(C, debt=1)
    with anyio.fail_after(30):
        assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {A, C}


async def test_a_foreign_message_on_the_log_is_passed_over(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log
) -> None:
    await js.publish(subjects.commits(A), b"?", {"X-Debt": "many"})
    await log.append(B, debt=1)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {B}


async def test_a_log_that_begins_anew_is_read_anew(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, log: Log, topology: TopologyOptions
) -> None:
    await log.append(A, debt=1)
    assert await sweeper.sweep() == 1
    await js.call(f"STREAM.DELETE.{subjects.commits_stream}")
    await ensure_topology(js, subjects, topology)
    await drop_tasks(js, subjects)
    log.previous.clear()
    await log.append(B, debt=1)
    assert await sweeper.sweep() == 1
    assert await tasks(js, subjects) == {B}


# -- which server sweeps -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def sweeping(url: str, subjects: Subjects) -> AsyncIterator[tuple[Sweeper, anyio.CancelScope]]:
    """A sweeper on a connection of its own. What is yielded ends it in good order."""
    async with Connection.connect(url, name="sweeper") as connection, anyio.create_task_group() as group:
        sweeper = new_sweeper(JetStream(connection), subjects)
        group.start_soon(sweeper.run)
        yield sweeper, group.cancel_scope
        group.cancel_scope.cancel()


async def until_one_is_pinned(*sweepers: Sweeper) -> Sweeper:
    with anyio.fail_after(60):
        while True:
            for one in sweepers:
                if one.pinned:
                    return one
            await anyio.sleep(0.01)


async def until_task(js: JetStream, subjects: Subjects, key: ChangeSetKey) -> None:
    with anyio.fail_after(60):
        while key not in await tasks(js, subjects):  # noqa: ASYNC110 - it is the server that changes
            await anyio.sleep(0.02)


async def test_one_of_many_sweeps_again_and_again(
    nats_url: str, js: JetStream, subjects: Subjects, topology: TopologyOptions
) -> None:
    async with sweeping(nats_url, subjects) as (one, _), sweeping(nats_url, subjects) as (two, _):
        for key in (A, B, C):
            await js.publish(subjects.requests(key), b"")
            await until_task(js, subjects, key)
        await until_one_is_pinned(one, two)
        assert one.pinned != two.pinned
        info = await js.consumer_info(subjects.sweep_stream, SWEEP_CONSUMER)
        assert len(info.priority_groups) == 1
        assert info.num_ack_pending <= 1


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_sweep_that_is_stopped_can_begin_elsewhere_at_once(
    sweeper: Sweeper, js: JetStream, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    delays: list[float] = []

    async def nak(_: JetStream, __: object, delay: float) -> None:
        delays.append(delay)

    async def sweep(_: Sweeper) -> int:
        if stopped:
            scope.cancel()
        await anyio.lowlevel.checkpoint()
        return 0

    monkeypatch.setattr(JetStream, "nak", nak)
    monkeypatch.setattr(Sweeper, "sweep", sweep)
    with anyio.CancelScope() as scope:
        await sweeper._sweep_once(cast("PullMessage", None))
    assert delays == [0.0 if stopped else sweeper._interval]


async def test_a_message_to_hold_that_somebody_deletes_is_made_again(
    nats_url: str, js: JetStream, subjects: Subjects, topology: TopologyOptions
) -> None:
    async with sweeping(nats_url, subjects) as (one, _):
        await until_one_is_pinned(one)
        await js.purge(subjects.sweep_stream)
        with anyio.fail_after(60):
            while await js.last(subjects.sweep_stream, subjects.sweep) is None:  # noqa: ASYNC110 - as above
                await anyio.sleep(0.02)
        await js.publish(subjects.requests(A), b"")
        await until_task(js, subjects, A)


async def test_when_the_pinned_one_leaves_another_sweeps(
    nats_url: str, js: JetStream, subjects: Subjects, topology: TopologyOptions
) -> None:
    async with (
        sweeping(nats_url, subjects) as (one, end_one),
        sweeping(nats_url, subjects) as (two, end_two),
    ):
        first = await until_one_is_pinned(one, two)
        (end_one if first is one else end_two).cancel()
        second = two if first is one else one
        assert await until_one_is_pinned(second) is second
        await js.publish(subjects.requests(A), b"")
        await until_task(js, subjects, A)


async def test_when_the_pinned_one_dies_another_sweeps(
    nats_url: str, js: JetStream, subjects: Subjects, topology: TopologyOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ensure_topology(js, subjects, replace(topology, sweep_interval=0.5))  # also bounds how long a pin lasts
    async with sweeping(nats_url, subjects) as (one, _), sweeping(nats_url, subjects) as (two, _):
        first = await until_one_is_pinned(one, two)
        second = two if first is one else one
        dead = first._js.connection
        monkeypatch.setattr(dead, "_open_again", lambda _: anyio.sleep_forever())
        await dead._close()  # for good, and no goodbye: nothing is given back, nobody is unpinned
        assert await until_one_is_pinned(second) is second
        await js.publish(subjects.requests(A), b"")
        await until_task(js, subjects, A)


async def test_what_names_no_change_set_is_moved_to_the_dead_letters(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, nats_url: str
) -> None:
    """NATS takes any bytes as a token. What is readable stays, whatever pattern it matches."""
    await js.publish(subjects.requests(A), b"stays")
    strange = [b"ws.*", b"ws.>", b"*.>", b"\xff.a", b"ws." + b"x" * 65, "ws.é".encode(), b"$JS.a"]
    root = f"{subjects.root}.requests.".encode()
    async with RawPublisher.connect(nats_url) as raw:
        for token in strange:
            inbox, stored = js.connection.open_reply()
            await raw.publish(root + token, b"body of " + token, {"X-Mine": "kept", "Nats-Expected-Stream": ""}, inbox)
            with anyio.fail_after(30):
                assert b'"seq"' in (await stored).data
    await js.publish(subjects.requests(B), b"stays")
    assert await sweeper.sweep() == 2
    assert await tasks(js, subjects) == {A, B}
    assert await js.subject_counts(subjects.requests_stream, ">") == {subjects.requests(A): 1, subjects.requests(B): 1}
    assert await js.subject_counts(subjects.dlq_stream, ">") == {subjects.dlq(UNROUTABLE_KEY): len(strange)}
    first = (await js.stream_info(subjects.dlq_stream)).first_sequence
    letters = [await js.get(subjects.dlq_stream, first + at) for at in range(len(strange))]  # moved side by side
    found = {letter.data: letter.headers for letter in letters if letter is not None}
    assert set(found) == {b"body of " + token for token in strange}
    assert all(headers["X-Reason-Code"] == "invalid_id" for headers in found.values())
    assert found[b"body of $JS.a"]["X-Original-Subject"] == f"{root.decode()}$JS.a"
    assert all(headers["X-Mine"] == "kept" for headers in found.values())
    assert await sweeper.sweep() == 0


async def test_strays_that_come_later_are_found_too(sweeper: Sweeper, js: JetStream, subjects: Subjects) -> None:
    for number in (1, 2):
        for _ in range(number):
            await js.publish(f"{subjects.root}.requests.ws.$", b"")
        await sweeper.sweep()
        assert not await js.subject_counts(subjects.requests_stream, ">")
    assert await js.subject_counts(subjects.dlq_stream, ">") == {subjects.dlq(UNROUTABLE_KEY): 3}


async def test_strays_are_found_in_a_stream_that_was_made_again(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, topology: TopologyOptions
) -> None:
    """Where they stand below what was looked at in the stream before."""
    stray = f"{subjects.root}.requests.ws.$"
    for _ in range(2):
        await js.publish(stray, b"")
    await sweeper.sweep()
    await js.call(f"STREAM.DELETE.{subjects.requests_stream}")
    await ensure_topology(js, subjects, topology)
    for subject in (stray, subjects.requests(A), subjects.requests(A)):
        await js.publish(subject, b"")
    await sweeper.sweep()
    assert await js.subject_counts(subjects.requests_stream, ">") == {subjects.requests(A): 2}


async def test_what_fails_while_many_are_at_work_is_tried_again_in_the_next_sweep(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that fails says so as one error: anything else would end the server."""
    for key in (A, B, C):
        await js.publish(subjects.requests(key), b"")
    for _ in range(3):
        await js.publish(f"{subjects.root}.requests.ws.$", b"")
    real, failing = JetStream.publish, ["dlq", "dlq", "tasks"]

    async def publish(self: JetStream, subject: str, *args: object, **more: object) -> PubAck:
        if failing and subject.startswith(f"{subjects.root}.{failing[-1]}."):
            failing.pop()
            raise NoAnswerError("no answer")
        return await real(self, subject, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(JetStream, "publish", publish)
    for left in (2, 1, 0):  # an error leaves the rest to the next sweep
        with pytest.raises(NoAnswerError):
            await sweeper.sweep()
        assert len(failing) <= left
        if not failing:
            break
    await sweeper.sweep()
    assert await tasks(js, subjects) == {A, B, C}
    assert await js.subject_counts(subjects.dlq_stream, ">") == {subjects.dlq(UNROUTABLE_KEY): 3}
    assert sum((await js.subject_counts(subjects.requests_stream, ">")).values()) == 3
