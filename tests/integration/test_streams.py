"""Tests how a server in this process reacts to streams and consumers that are deleted or were recreated."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser.runtime import stream_watch as module
from rebaser.runtime.stream_watch import StreamWatch
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.errors import TransientError
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import SEQUENCE_GAP, SWEEP_CONSUMER, TASKS_CONSUMER, TopologyOptions
from tests.conftest import Events

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


class Holder:
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, frozenset[str]]] = []
        self.made = anyio.Event()

    def streams_lost(self, streams: Mapping[str, int]) -> None:
        self.told.append(("lost", frozenset(streams)))
        self.recreated_from = dict(streams)

    def streams_recreated(self, streams: frozenset[str]) -> None:
        self.told.append(("made", streams))
        self.made.set()


@asynccontextmanager
async def watched(js: JetStream, subjects: Subjects) -> AsyncIterator[tuple[StreamWatch, Holder]]:
    streams, holder = StreamWatch(js, subjects, TopologyOptions()), Holder()
    await streams.ensure()
    async with anyio.create_task_group() as group:
        group.start_soon(streams.run, holder)
        with anyio.fail_after(60):
            yield streams, holder
        group.cancel_scope.cancel()


async def test_a_consumer_that_is_deleted_is_made_again_and_nothing_is_lost(
    js: JetStream, subjects: Subjects, events: Events
) -> None:
    async with watched(js, subjects) as (streams, holder), anyio.create_task_group() as group:
        group.start_soon(events.wait_for, lambda entry: entry["event"] == "server_ready_again")
        await js.delete_consumer(subjects.tasks_stream, TASKS_CONSUMER)
        streams.check_soon()
    assert (await js.consumer_info(subjects.tasks_stream, TASKS_CONSUMER)).name == TASKS_CONSUMER
    assert not holder.told
    assert not streams.losses
    [unready] = events.named("server_unready")
    assert TASKS_CONSUMER in unready["reason"]
    [created] = events.named("consumers_created")
    assert created["consumers"] == [f"consumer {TASKS_CONSUMER} of {subjects.tasks_stream}"]
    assert not events.named("streams_created")


async def test_a_server_that_gets_no_tasks_because_somebody_paused_them_says_so(
    js: JetStream, subjects: Subjects, events: Events
) -> None:
    pause = f"CONSUMER.PAUSE.{subjects.tasks_stream}.{TASKS_CONSUMER}"
    async with watched(js, subjects) as (streams, holder):
        await js.call(pause, {"pause_until": "2999-01-01T00:00:00Z"})
        streams.check_soon()
        while not streams.problem:  # noqa: ASYNC110 - it is a plain attribute
            await anyio.sleep(0.02)
        assert f"`nats consumer resume {subjects.tasks_stream} {TASKS_CONSUMER}`" in streams.problem
        await js.call(pause, {})
        streams.check_soon()
        while streams.problem:  # noqa: ASYNC110 - it is a plain attribute
            await anyio.sleep(0.02)
    assert not holder.told
    assert [len(events.named(name)) for name in ("server_unready", "server_ready_again")] == [1, 1]


async def test_a_server_with_one_problem_after_another_is_unready_once(
    js: JetStream, subjects: Subjects, events: Events
) -> None:
    """Alerts subtract the number of `server_ready_again` from that of `server_unready`."""
    pause = f"CONSUMER.PAUSE.{subjects.tasks_stream}.{TASKS_CONSUMER}"
    async with watched(js, subjects) as (streams, _):

        async def problem(part: str) -> None:
            while part not in streams.problem:
                streams.check_soon()
                await anyio.sleep(0.02)

        await js.call(pause, {"pause_until": "2999-01-01T00:00:00Z"})
        await problem("somebody has paused")
        streams.note_refusal("no room")
        await problem("NATS stores no messages: no room")
        streams.note_refusal("")
        await problem("somebody has paused")
        await js.call(pause, {})
        while streams.problem:
            streams.check_soon()
            await anyio.sleep(0.02)
    names = ("server_unready", "unready_reason_changed", "server_ready_again")
    assert [len(events.named(name)) for name in names] == [1, 2, 1]


async def test_a_server_is_ready_while_only_the_sweeps_are_paused(
    js: JetStream, subjects: Subjects, events: Events
) -> None:
    pause = f"CONSUMER.PAUSE.{subjects.sweep_stream}.{SWEEP_CONSUMER}"
    async with watched(js, subjects) as (streams, _), anyio.create_task_group() as group:
        group.start_soon(events.wait_for, lambda entry: entry["event"] == "sweep_paused")
        await js.call(pause, {"pause_until": "2999-01-01T00:00:00Z"})
        streams.check_soon()
    await streams._missing_consumers()
    [warning] = events.named("sweep_paused")
    assert f"`nats consumer resume {subjects.sweep_stream} {SWEEP_CONSUMER}`" in warning["reason"]
    assert (streams.problem, streams._paused) == ("", "")
    assert not events.named("server_unready")


async def test_a_stream_that_another_server_made_again_is_lost_all_the_same(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server never saw the stream missing, but it is a new one."""
    monkeypatch.setattr(module, "DELETED", "nobody.tells")
    name = subjects.commits_stream
    async with watched(js, subjects) as (streams, holder):
        await js.delete_stream(name)
        await ensure_topology(js, subjects, TopologyOptions(), {name: 5})
        streams.check_soon()
        await holder.made.wait()
        assert holder.told == [("lost", frozenset([name])), ("made", frozenset([name]))]
        assert holder.recreated_from == {name: 2 * SEQUENCE_GAP + 1}
        assert len(streams.losses) == 1
        assert not streams.problem
    assert (await js.stream_info(name)).first_sequence == 2 * SEQUENCE_GAP + 1


async def test_a_stream_that_is_lost_again_is_told_of_again(js: JetStream, subjects: Subjects) -> None:
    """A recreated stream is reported once, and not at each check."""
    name = subjects.commits_stream
    first = [(await js.stream_info(name)).first_sequence]
    async with watched(js, subjects) as (streams, holder):
        for _ in range(2):
            holder.made = anyio.Event()
            await js.delete_stream(name)
            streams.check_soon()
            await holder.made.wait()
            first.append((await js.stream_info(name)).first_sequence)
        assert holder.told == 2 * [("lost", frozenset([name])), ("made", frozenset([name]))]
        assert len(streams.losses) == 2
    assert first[1] >= first[0] + SEQUENCE_GAP
    assert first[2] >= first[1] + SEQUENCE_GAP, "an old ack would hit a message of the new stream"


async def test_a_stream_that_cannot_be_made_again_is_told_of_once_and_the_server_is_unready_meanwhile(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    name, problems = subjects.commits_stream, list[str]()

    async def refused_at_first(*given: Any) -> None:
        problems.append(streams.problem)
        if len(problems) <= 3:
            raise TransientError("no place left")
        await ensure_topology(*given)

    async with watched(js, subjects) as (streams, holder):
        monkeypatch.setattr(module, "ensure_topology", refused_at_first)
        await js.delete_stream(name)
        streams.check_soon()
        await holder.made.wait()
        assert holder.told == [("lost", frozenset([name])), ("made", frozenset([name]))]
        assert len(streams.losses) == 1
        while streams.problem:
            await checkpoint()
    assert problems == [f"missing in NATS: {name}", *["the streams cannot be checked or created: no place left"] * 3]
    names = ("server_unready", "unready_reason_changed", "server_ready_again")
    assert [len(events.named(name)) for name in names] == [1, 1, 1]


async def test_a_stream_that_nats_cannot_describe_now_is_not_lost(
    js: JetStream, subjects: Subjects, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(js, subjects) as (streams, holder):
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "server_unready")
            with monkeypatch.context() as patch:
                patch.setattr(js, "stream_info", unavailable)
                streams.check_soon()
                while not streams.problem:
                    await checkpoint()
        while streams.problem:
            await checkpoint()
        assert not holder.told
        assert not streams.losses


async def test_a_lost_connection_is_no_problem_of_the_streams(
    js: JetStream, subjects: Subjects, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/readyz` names the connection, and nothing else."""
    looks = 0

    async def disconnected(_: str) -> None:
        nonlocal looks
        looks += 1
        raise NotConnectedError("there is no connection to NATS")

    async with watched(js, subjects) as (streams, _):
        with monkeypatch.context() as patch:
            patch.setattr(js, "stream_info", disconnected)
            while looks < 20:  # of several checks
                streams.check_soon()
                await checkpoint()
            assert not streams.problem
    assert not events.named("server_unready")


async def unavailable(_: str) -> None:
    raise ApiError(503, 10008, "JetStream system temporarily unavailable")


async def test_of_servers_that_make_a_stream_at_once_all_go_on(js: JetStream, subjects: Subjects) -> None:
    """Each server knows another last sequence of the old stream, and so another first sequence for the new one."""
    name = subjects.requests_stream
    await js.delete_stream(name)
    async with anyio.create_task_group() as group:
        for end in (10, 3 * SEQUENCE_GAP, 7 * SEQUENCE_GAP):
            group.start_soon(ensure_topology, js, subjects, TopologyOptions(), {name: end})
    assert (await js.stream_info(name)).first_sequence > SEQUENCE_GAP


async def test_a_server_is_unready_until_a_stream_that_disappears_again_exists(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    name = subjects.commits_stream
    times = 0

    async def make_in_vain(*arguments: Any) -> None:
        nonlocal times
        times += 1
        await ensure_topology(*arguments)
        if times in (2, 3):
            await js.delete_stream(name)

    monkeypatch.setattr(module, "ensure_topology", make_in_vain)
    async with watched(js, subjects) as (streams, holder):
        await js.delete_stream(name)
        streams.check_soon()
        await holder.made.wait()
        assert times == 4
    assert len(events.named("server_ready_again")) <= 1
    assert [told for told, _ in holder.told] == ["lost", "made"]
