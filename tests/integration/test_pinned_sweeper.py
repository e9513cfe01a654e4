"""One server of the fleet sweeps; if it stops or dies, another one takes over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import anyio
import pytest

from rebaser.sweeper.debts import DebtTracker
from rebaser.sweeper.sweeper import Sweeper
from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream, Message, PullMessage
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import SWEEP_CONSUMER, TopologyOptions
from tests.support.owners import Engine, serving
from tests.support.sweeps import new_sweeper, tasks

A, B, C = (ChangeSetKey("ws", name) for name in "abc")

pytestmark = pytest.mark.anyio


# -- which server sweeps -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def sweeping(
    url: str, subjects: Subjects, interval: float = 0.5
) -> AsyncIterator[tuple[Sweeper, anyio.CancelScope]]:
    """Run a sweeper on a connection of its own, and yield it with a scope that ends it in good order."""
    async with Connection.connect(url, name="sweeper") as connection, anyio.create_task_group() as group:
        sweeper = new_sweeper(JetStream(connection), subjects, interval)
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


async def test_headers_are_read_between_sweeps(
    nats_url: str, js: JetStream, subjects: Subjects, topology: TopologyOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser.sweeper.sweeper.READ_AHEAD_LEAST", 1)
    async with sweeping(nats_url, subjects, interval=600.0) as (sweeper, _):
        with anyio.fail_after(60):
            while sweeper.seen is None:  # noqa: ASYNC110 - the first sweep
                await anyio.sleep(0.01)
            await js.publish(subjects.commits(A), b"", {"X-Applied": "", "X-Debt": "1"})
            while not sweeper._debts.owing_since:  # noqa: ASYNC110 - the sweeper reads
                await anyio.sleep(0.01)
        assert await tasks(js, subjects) == set(), "only a sweep publishes tasks"


async def test_a_server_that_sweeps_reads_only_the_newest_of_its_own_commits(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: set[int] = set()  # log sequences of the commits that were passed over
    recorded: list[int] = []  # log sequences of those whose headers were read and not needless
    real_pass, real_record = DebtTracker._pass_over_own, DebtTracker._record

    def pass_over(tracker: DebtTracker, last: int) -> None:
        before = tracker._read_up_to
        real_pass(tracker, last)
        passed.update(range(before + 1, tracker._read_up_to + 1))

    def record(tracker: DebtTracker, message: Message) -> None:
        recorded.append(message.stream_sequence)
        real_record(tracker, message)

    monkeypatch.setattr(DebtTracker, "_pass_over_own", pass_over)
    monkeypatch.setattr(DebtTracker, "_record", record)
    commits = 0
    async with serving(js, subjects, engine, sweep_interval=0.5):
        with anyio.fail_after(60):
            while len(passed) < 50:
                await client.enqueue_updates_with_reply("ws", str(commits % 3), [Set("a", commits)])
                commits += 1
            await client.enqueue_updates_with_reply("ws", "b", [Set("a", 1), Derive("b", "x", {"a": "a"})])
            while not recorded or recorded[-1] <= commits:  # noqa: ASYNC110 - the sweeper reads
                await anyio.sleep(0.01)
    assert passed.isdisjoint(recorded)


async def test_one_of_many_sweeps_again_and_again(
    nats_url: str, js: JetStream, subjects: Subjects, topology: TopologyOptions
) -> None:
    async with sweeping(nats_url, subjects) as (one, _), sweeping(nats_url, subjects) as (two, _):
        for key in (A, B, C):
            await js.publish(subjects.requests(key), b"")
            await until_task(js, subjects, key)
        with anyio.fail_after(60):
            while one.pinned == two.pinned:  # noqa: ASYNC110 - NATS tells it
                await anyio.sleep(0.01)
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
        await dead._close()  # without giving anything back
        assert await until_one_is_pinned(second) is second
        await js.publish(subjects.requests(A), b"")
        await until_task(js, subjects, A)
