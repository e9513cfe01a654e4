"""Streams are deleted while servers run: servers create them again and report what was lost, and work continues."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import RebaserClient, Set
from rebaser_client.admin.servers import ping
from rebaser_client.errors import NotReadyError
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.messages import EnqueueUpdatesResponse
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import SEQUENCE_GAP, TopologyOptions, streams
from tests.support.commands import rebaser, rebaser_json
from tests.support.fleet import NO_SPARK, ServerProcess, servers
from tests.support.history import check_history, check_replies, commit_of, commits_of
from tests.support.writers import ENOUGH, Writers

pytestmark = pytest.mark.anyio

SUBJECTS = Subjects()
STREAMS = [stream["name"] for stream in streams(SUBJECTS, TopologyOptions())]
BLOBS = f"OBJ_{SUBJECTS.blobs_bucket}"
SETTINGS: dict[str, Any] = {"warm": False, "spark": NO_SPARK, "quiescent_period": 600}


class Patient(Writers):
    """Repeats a request under its id if it was refused because NATS or its streams were unavailable."""

    async def send(self, update: Set) -> EnqueueUpdatesResponse:
        self.sent += 1
        id_ = f"r{self.sent}"
        while True:
            try:
                return await self.client.enqueue_updates_with_reply(
                    "takeover", self.change_set, [update], timeout=120, request_id=id_
                )
            except (NotConnectedError, NotReadyError):
                await anyio.sleep(0.1)


@asynccontextmanager
async def writing(client: RebaserClient, change_set: str) -> AsyncIterator[Writers]:
    """Send requests with replies inside the `with` block, and wait for all answers at its end."""
    writers = Patient(client, change_set)
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(writers.run, f"w{number}")
        await writers.answered(ENOUGH)
        yield writers
        writers.stopped = True


async def settled(js: JetStream, name: str, *fleet: ServerProcess) -> None:
    """Return when all servers have noticed the loss, are ready again, and report the loss."""
    for one in fleet:
        await one.wait_for("stream_lost", stream=name)
    with anyio.fail_after(120):
        while True:
            await js.connection.wait_connected()
            told = await ping(js.connection, SUBJECTS, patience=10, enough=lambda told: len(told) >= len(fleet))
            if len(told) == len(fleet) and all(one.ready and any(name in loss for loss in one.losses) for one in told):
                return


async def test_a_stream_that_is_deleted_under_load_is_made_again(own_nats: EmbeddedNats) -> None:
    """Except for the logs, no answered request depends on a stream, so work continues as if nothing had happened."""
    async with (
        servers(own_nats.url, "left", "right", **SETTINGS) as fleet,
        RebaserClient.connect(own_nats.url) as client,
        Connection.connect(own_nats.url) as connection,
    ):
        js = JetStream(connection)
        for name in STREAMS:
            if name == SUBJECTS.commits_stream:
                continue
            async with writing(client, name) as writers:
                before = await js.stream_info(name)
                await js.delete_stream(name)
                await settled(js, name, *fleet)
                after = await js.stream_info(name)
                assert after.created != before.created
                assert after.first_sequence > SEQUENCE_GAP
                await writers.answered(ENOUGH)
            values = await client.values("takeover", name)
            assert {id_: value.value for id_, value in values.items()} == writers.last
            commits = await commits_of(client, "takeover", name)
            check_history(commits)
            check_replies(commits, writers.replies)


async def end_of_the_owner(fleet: Sequence[ServerProcess]) -> list[dict[str, Any]]:
    """Return the events with which servers tell what their owners lost. If another server creates the log first, the
    new log may end the owner before its own server notices the loss. Then there is none, but an event of that end."""
    with anyio.fail_after(120):
        while True:
            events = [event for one in fleet for event in one.events]
            lost = [event for event in events if event.get("event") == "change_set_lost"]
            if lost or any(event.get("event") in ("decide_failed", "consume_failed", "lease_lost") for event in events):
                return lost
            await anyio.sleep(0.05)


async def test_logs_that_are_deleted_under_load_begin_anew_and_what_they_held_is_told(own_nats: EmbeddedNats) -> None:
    """An owner that still has the state follows the log: it does not append to the new log as if nothing had
    happened."""
    name = SUBJECTS.commits_stream
    async with (
        servers(own_nats.url, "left", "right", **SETTINGS) as fleet,
        RebaserClient.connect(own_nats.url) as client,
        Connection.connect(own_nats.url) as connection,
    ):
        js = JetStream(connection)
        await client.enqueue_updates_with_reply("takeover", "a", [Set("before", 1)])
        with anyio.fail_after(60):
            # Without the log, a request that is still in the queue is decided again.
            while (await js.stream_info(SUBJECTS.requests_stream)).messages:
                pass
        async with writing(client, "a") as writers:
            replies = list(writers.replies)
            await js.delete_stream(name)
            await settled(js, name, *fleet)
            await writers.answered(ENOUGH)
        for lost in await end_of_the_owner(fleet):
            assert (lost["change_set"], lost["values"]) == ("a", 5)
            assert lost["seq"] >= max(map(commit_of, replies))
        values = await client.values("takeover", "a")
        assert {id_: value.value for id_, value in values.items()} == writers.last, "the state is what the log says"
        commits = await commits_of(client, "takeover", "a")
        check_history(commits)
        assert commits[0].sequence >= SEQUENCE_GAP


async def test_what_owners_hold_of_lost_checkpoints_is_stored_again(own_nats: EmbeddedNats) -> None:
    """The log before a checkpoint is purged. So without the blobs, the state would be lost as soon as its owner
    releases it."""
    async with (
        servers(own_nats.url, "left", **SETTINGS | {"checkpoint_bytes": 1024}) as [left],
        RebaserClient.connect(own_nats.url) as client,
        Connection.connect(own_nats.url) as connection,
    ):
        js = JetStream(connection)
        async with writing(client, "a") as writers:
            await left.wait_for("checkpoint_written", base=True)
        written = left.count("checkpoint_written")
        await js.delete_stream(BLOBS)
        await settled(js, BLOBS, left)
        while left.count("checkpoint_written") == written:
            await left.heard()
        assert await left.terminate() == 0
        values = await client.values("takeover", "a")
        assert {id_: value.value for id_, value in values.items()} == writers.last


async def wipe(nats: EmbeddedNats) -> None:
    """Empty the storage of NATS, as when a machine comes back with another disk."""
    await nats.kill()
    shutil.rmtree(nats.data_dir / "jetstream")
    await nats.start()


async def restart(nats: EmbeddedNats) -> None:
    await nats.kill()
    await nats.start()


@pytest.mark.parametrize(("happens", "durability"), [(wipe, "fast"), (restart, "memory")])
async def test_a_store_that_comes_back_empty_is_filled_again(
    own_nats: EmbeddedNats, happens: Callable[[EmbeddedNats], Awaitable[None]], durability: str
) -> None:
    async with (
        servers(own_nats.url, "left", "right", **SETTINGS, durability=durability) as fleet,
        RebaserClient.connect(own_nats.url) as client,
        Connection.connect(own_nats.url) as connection,
    ):
        js = JetStream(connection)
        await client.enqueue_updates_with_reply("takeover", "a", [Set("before", 1)])
        async with writing(client, "a") as writers:
            await happens(own_nats)
            for name in STREAMS:
                await settled(js, name, *fleet)
            await writers.answered(ENOUGH)
        values = await client.values("takeover", "a")
        assert {id_: value.value for id_, value in values.items()} == writers.last
        check_history(await commits_of(client, "takeover", "a"))
        assert {(await js.stream_info(name)).config["storage"] for name in STREAMS} == {
            "memory" if durability == "memory" else "file"
        }


async def test_a_server_is_unready_while_a_stream_cannot_be_made(own_nats: EmbeddedNats) -> None:
    async with (
        servers(own_nats.url, "left", **SETTINGS) as [left],
        RebaserClient.connect(own_nats.url) as client,
        Connection.connect(own_nats.url) as connection,
    ):
        js = JetStream(connection)
        # A server that is running could create its stream again before, or even together with, the conflicting one.
        left.pause()
        await js.delete_stream(SUBJECTS.tasks_stream)
        await js.add_stream({"name": "SQUATTER", "subjects": ["rebaser.tasks.>"]})
        left.resume()
        await left.wait_for("server_unready")
        done = await rebaser("ping", nats_url=own_nats.url)
        assert done.returncode == 1
        assert "server left is not ready" in done.stderr
        assert "overlap" in done.stderr
        [status] = await rebaser_json("status", nats_url=own_nats.url)
        assert [one["ready"] for one in status["servers"]] == [False]
        await js.delete_stream("SQUATTER")
        await left.wait_for("server_ready_again")
        assert (await rebaser("ping", nats_url=own_nats.url)).returncode == 0
        await client.enqueue_updates_with_reply("takeover", "a", [Set("after", 1)])
        status = await rebaser("status", nats_url=own_nats.url)
        assert f"stream {SUBJECTS.tasks_stream} was lost with its contents" in status.stderr
