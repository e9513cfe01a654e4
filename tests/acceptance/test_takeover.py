"""While requests stream in, an owner dies, is paused for too long, or is stopped: another server continues."""

from collections.abc import Sequence
from itertools import groupby

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Commit, Derive, RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.values import State
from tests.support.fleet import NO_SPARK, ServerProcess, servers
from tests.support.history import check_history, check_replies, commit_of, commits_of
from tests.support.writers import ENOUGH, Writers

pytestmark = pytest.mark.anyio


async def owner_of(client: RebaserClient, change_set: str, among: Sequence[ServerProcess]) -> ServerProcess:
    last = (await commits_of(client, "takeover", change_set))[-1]
    return next(one for one in among if one.name == last.owner)


async def written_by(client: RebaserClient, change_set: str, name: str) -> None:
    """Return when the log has a commit of server `name`."""
    with anyio.fail_after(120):
        async for commit in client.watch("takeover", change_set, after=0):
            if commit.owner == name:
                return


def terms(commits: Sequence[Commit]) -> list[str]:
    """Return the owners of the change set, in order."""
    return [name for name, _ in groupby(commit.owner for commit in commits)]


def check_terms(commits: Sequence[Commit], change_set: str, among: Sequence[ServerProcess]) -> None:
    """Check that each owner began with the commit after those that it had loaded: what it was doing in an earlier term
    changed nothing.

    A busy machine can make a server lose its change sets at any time, so the number of terms is not known.
    """
    loaded = {
        (one.name, event["seq"])
        for one in among
        for event in one.events
        if event.get("event") == "change_set_owned" and event["change_set"] == change_set
    }
    begun = {(name, next(term).previous) for name, term in groupby(commits, lambda commit: commit.owner)}
    assert begun <= loaded


async def test_a_killed_server_is_replaced_and_nothing_is_lost_or_doubled(
    own_nats: EmbeddedNats, spark_url: str
) -> None:
    """The server is killed while requests with replies stream to three change sets, and values are derived."""
    names = ["w1", "w2"]
    total = Derive("total", "sum", {"of": [f"n/{name}" for name in names]})
    twice = Derive("twice", "cel", {"total": "total"}, {"expr": "total * 2"})
    async with (
        servers(own_nats.url, "left", "right", spark=spark_url, ack_wait=2, quiescent_period=600) as both,
        RebaserClient.connect(own_nats.url) as client,
    ):
        streams = [Writers(client, change_set) for change_set in ("a", "b", "c")]
        async with anyio.create_task_group() as group:
            for writers in streams:
                first: list[Set | Derive] = [*(Set(f"n/{name}", 0) for name in names), total, twice]
                reply = await client.enqueue_updates_with_reply("takeover", writers.change_set, first)
                writers.replies.append(reply)
                for name in names:
                    group.start_soon(writers.run, name)
            await streams[0].answered(ENOUGH)
            victim = await owner_of(client, "a", both)
            await victim.kill()
            for writers in streams:
                await writers.answered(ENOUGH)
                writers.stopped = True
        [survivor] = [one.name for one in both if one is not victim]
        for writers in streams:
            await client.wait_covered("takeover", writers.change_set, commit_of(writers.replies[-1]))
            commits = await commits_of(client, "takeover", writers.change_set)
            check_history(commits)
            check_replies(commits, writers.replies)
            check_terms(commits, writers.change_set, both)
            assert terms(commits)[-1] == survivor
            values = await client.values("takeover", writers.change_set)
            assert {id_: values[id_].value for id_ in writers.last} == writers.last
            assert (values["total"].value, values["total"].state) == (sum(writers.last.values()), State.OK)
            assert (values["twice"].value, values["twice"].state) == (2 * sum(writers.last.values()), State.OK)
        assert victim.name in terms(await commits_of(client, "takeover", "a"))


async def test_a_server_that_slept_through_its_lease_is_fenced(own_nats: EmbeddedNats) -> None:
    """The server is paused for longer than the ack wait, and continues: nothing that it was doing changes the change
    set."""
    settings = {"spark": NO_SPARK, "ack_wait": 2, "quiescent_period": 600}
    async with (
        servers(own_nats.url, "left", "right", warm=False, **settings) as both,
        RebaserClient.connect(own_nats.url) as client,
        anyio.create_task_group() as group,
    ):
        writers = Writers(client, "a")
        for number in range(8):
            group.start_soon(writers.run, f"w{number}")
        await writers.answered(ENOUGH)
        sleeper = await owner_of(client, "a", both)
        [other] = [one for one in both if one is not sleeper]
        sleeper.pause()
        await written_by(client, "a", other.name)
        await writers.answered(ENOUGH)
        sleeper.resume()
        await sleeper.wait_for("lease_lost", owned=1)
        await writers.answered(ENOUGH)
        writers.stopped = True
    async with RebaserClient.connect(own_nats.url) as client:
        commits = await commits_of(client, "takeover", "a")
    check_history(commits)
    check_replies(commits, writers.replies)
    check_terms(commits, "a", both)
    assert {sleeper.name, other.name} == set(terms(commits))


async def test_of_two_owners_at_once_the_log_lets_one_write(own_nats: EmbeddedNats) -> None:
    """The task is lost while its owner works, and another server gets a new task: neither knows of the other."""
    key = ChangeSetKey.of("takeover", "a")
    async with (
        servers(own_nats.url, "left", "right", warm=False, spark=NO_SPARK, quiescent_period=600) as both,
        RebaserClient.connect(own_nats.url) as client,
        Connection.connect(own_nats.url, name="test") as connection,
    ):
        js, subjects = JetStream(connection), Subjects("")
        writers = Writers(client, "a")
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(writers.run, f"w{number}")
            await writers.answered(ENOUGH)
            first = await owner_of(client, "a", both)
            [other] = [one for one in both if one is not first]
            while not other.count("change_set_owned"):  # the first server may get the new task again
                await js.purge(subjects.tasks_stream)
                await publish_task(js, subjects, key)
                await writers.answered(1)
            await fenced(both)
            await writers.answered(ENOUGH)
            writers.stopped = True
        commits = await commits_of(client, "takeover", "a")
    check_history(commits)
    check_replies(commits, writers.replies)


async def fenced(among: Sequence[ServerProcess]) -> None:
    """Return when the log has refused an append of one of the servers."""
    async with anyio.create_task_group() as group:

        async def listen(server: ServerProcess) -> None:
            await server.wait_for("decide_failed", fenced=True)
            group.cancel_scope.cancel()

        for server in among:
            group.start_soon(listen, server)


async def test_a_server_told_to_stop_hands_over_at_once(own_nats: EmbeddedNats) -> None:
    """On SIGTERM, the tasks are given back by nak, before the ack wait of an hour ends, and the process exits with
    0."""
    settings = {"spark": NO_SPARK, "ack_wait": 3600, "quiescent_period": 600}
    async with (
        servers(own_nats.url, "left", "right", warm=False, **settings) as both,
        RebaserClient.connect(own_nats.url) as client,
    ):
        streams = [Writers(client, change_set) for change_set in ("a", "b")]
        async with anyio.create_task_group() as group:
            for writers in streams:
                for name in ("w1", "w2", "w3"):
                    group.start_soon(writers.run, name)
            await streams[0].answered(ENOUGH)
            leaver = await owner_of(client, "a", both)
            [other] = [one for one in both if one is not leaver]
            assert await leaver.terminate() == 0
            for writers in streams:
                await writers.answered(ENOUGH)
                writers.stopped = True
        for writers in streams:
            commits = await commits_of(client, "takeover", writers.change_set)
            check_history(commits)
            check_replies(commits, writers.replies)
            assert terms(commits)[-1] == other.name
        assert terms(await commits_of(client, "takeover", "a")) == [leaver.name, other.name]
