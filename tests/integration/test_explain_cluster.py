"""What `explain` answers while nodes of a NATS cluster are down."""

import pytest

from rebaser_client import RebaserClient, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.cluster import NODES, Cluster
from tests.support.explaining import answering, explained

pytestmark = pytest.mark.anyio


async def test_copies_that_are_behind_and_streams_without_a_leader_are_named(cluster: Cluster) -> None:
    first, second, third = NODES
    subjects = Subjects()
    url = cluster.nodes[first].url  # so that the client and the server never have to connect again
    async with Connection.connect(url) as connection, RebaserClient.connect(url) as client:
        js = JetStream(connection)
        await ensure_topology(js, subjects, TopologyOptions(replicas=3))
        async with answering(js, subjects):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
            await explained(client, "quiet")
            await cluster.kill(second)
            told = await explained(client, "copies_behind", also=("copies_behind",))
            assert not told.waits
            assert "1 of 3 copies" in told.reasons[0].text
            await cluster.kill(third)
            told = await explained(client, "no_stream_leader")
            assert told.waits
