"""Full streams and floods of requests: only clients that send too much are refused. No test here derives a value."""

from bisect import bisect
from pathlib import Path

import anyio
import pytest

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, RequestTimeout, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions, streams
from tests.support.commands import rebaser
from tests.support.fleet import NO_SPARK, servers

pytestmark = pytest.mark.anyio

SUBJECTS = Subjects()


async def limit_commits(url: str, max_bytes: int) -> None:
    """Raise the limit of the stream of logs, as an operator does."""
    async with Connection.connect(url) as connection:
        for stream in streams(SUBJECTS, TopologyOptions(commits_max_bytes=max_bytes)):
            if stream["name"] == SUBJECTS.commits_stream:
                await JetStream(connection).ensure_stream(stream)


async def test_a_full_log_keeps_requests_waiting_until_there_is_room(tmp_path: Path) -> None:
    """The server keeps running, reports the full stream in its log and in `rebaser status`, and continues
    automatically."""
    async with (
        embedded_nats(tmp_path / "nats") as nats,
        servers(nats.url, "one", warm=False, spark=NO_SPARK, commits_max_bytes=20_000) as (server,),
        RebaserClient.connect(nats.url) as client,
    ):
        await client.enqueue_updates_with_reply("shop", "main", [Set("first", 1)])
        sent = [await client.enqueue_updates("shop", "main", [Set(f"v{n}", "x" * 9_000)]) for n in range(5)]
        await server.wait_for("decide_failed", code="commit_refused")
        with pytest.raises(RequestTimeout) as late:  # after it was stored
            await client.enqueue_updates_with_reply("shop", "main", [Set("last", 1)], timeout=6)
        with anyio.fail_after(120):  # a status shows only servers that answer soon
            found = await client.status()
            while "maximum bytes exceeded" not in "".join(one.trouble for one in found.servers):
                found = await client.status()
            while "maximum bytes exceeded" not in (await rebaser("status", nats_url=nats.url)).stderr:
                pass
        assert 4 <= found.change_sets[0].pending <= 6  # two more requests may have fitted in
        await limit_commits(nats.url, -1)
        with anyio.fail_after(120):
            # In either case, the request is answered once it is applied.
            await client.enqueue_updates_with_reply("shop", "main", [Set("last", 1)], request_id=late.value.request_id)
        state = await client.state("shop", "main")
        assert [request for request in state.outcomes if request in sent] == sent
        assert set(state.values()) == {"first", "last", *(f"v{n}" for n in range(5))}
        assert server.process.returncode is None


@pytest.mark.timeout(900)
async def test_a_long_queue_does_not_keep_another_change_set_waiting(tmp_path: Path) -> None:
    """The long queue was stored before the other requests. One server works on both, and answers the others before the
    queue is empty. The queue is long enough to outlast the start of a change set on a slow machine."""
    queued, others = 6000, [f"other-{number}" for number in range(3)]
    async with embedded_nats(tmp_path / "nats") as nats, RebaserClient.connect(nats.url) as client:
        async with Connection.connect(nats.url) as connection:
            await ensure_topology(JetStream(connection), SUBJECTS, TopologyOptions())
        numbers = iter(range(queued))

        async def fill() -> None:
            for number in numbers:
                await client.enqueue_updates("shop", "flood", [Set(f"v{number % 100}", number)])

        async with anyio.create_task_group() as group:
            for _ in range(64):
                group.start_soon(fill)
        for other in others:
            await client.enqueue_updates("shop", other, [Set("a", 1)])
        # With a commit for each request, the queue is long even beside a start of the others on a busy machine.
        settings = {"spark": NO_SPARK, "batch_max_requests": 1, "checkpoint_bytes": 2**40}
        async with servers(nats.url, "one", warm=False, **settings):
            # Answered after all earlier requests.
            await client.enqueue_updates_with_reply("shop", "flood", [Set("last", 1)], timeout=600)
        ends = [entry.sequence async for entry in client.entries("commits", "shop", "flood")]
        for other in others:
            [mine] = [entry.sequence async for entry in client.entries("commits", "shop", other)]
            assert bisect(ends, mine) < len(ends) * 3 / 4
