"""A NATS cluster loses its leader while requests stream in: no request is lost, and none is applied twice."""

from collections.abc import Mapping

import anyio
import pytest

from rebaser_client import RebaserClient, Set
from rebaser_core.commit import Commit
from rebaser_core.errors import TransientError
from rebaser_core.messages import EnqueueUpdatesResponse
from rebaser_core.streams.subjects import Subjects
from rebaser_core.values import Value
from tests.support.cluster import Cluster
from tests.support.fleet import NO_SPARK, servers
from tests.support.history import check_history, check_replies, commits_of

pytestmark = pytest.mark.anyio

CHANGE_SETS = ("a", "b", "c", "d", "e")
EACH = 60  # requests
BOUND = 400  # seconds; a bound against hanging


async def read(client: RebaserClient, change_set: str) -> tuple[list[Commit], Mapping[str, Value]]:
    """Return the commits of a log and the values, once the cluster has the leaders that this needs."""
    while True:
        try:
            commits = await commits_of(client, "cluster", change_set)
            return commits, await client.values("cluster", change_set)
        except TransientError:
            await anyio.sleep(0.1)


async def test_a_killed_leader_of_the_cluster_costs_no_request(cluster: Cluster) -> None:
    replies: dict[str, list[EnqueueUpdatesResponse]] = {name: [] for name in CHANGE_SETS}
    some = anyio.Event()

    async def send(client: RebaserClient, change_set: str, writer: int) -> None:
        for number in range(writer, EACH, 4):
            update = Set(f"n/{number}", number)
            answer = await client.enqueue_updates_with_reply("cluster", change_set, [update], timeout=BOUND)
            replies[change_set].append(answer)
            if sum(map(len, replies.values())) == EACH:
                some.set()

    with anyio.fail_after(BOUND):
        async with (
            # A new stream of a cluster has no leader at first, so servers that start at once have to wait for it.
            servers(cluster.url, "one", "two", warm=False, spark=NO_SPARK, replicas=3, concurrency=3, wait_for_nats=60),
            RebaserClient.connect(cluster.url) as client,
        ):
            async with anyio.create_task_group() as group:
                for change_set in CHANGE_SETS:
                    for writer in range(4):
                        group.start_soon(send, client, change_set, writer)
                await some.wait()
                await cluster.kill(await cluster.leader_of(Subjects().commits_stream))
            for change_set in CHANGE_SETS:
                commits, values = await read(client, change_set)
                check_history(commits)
                check_replies(commits, replies[change_set])
                assert {name: value.value for name, value in values.items()} == {f"n/{n}": n for n in range(EACH)}
