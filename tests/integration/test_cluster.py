"""The client's promises on a cluster of three, whichever node leads or is gone."""

import pytest

from rebaser_client.jetstream import Connection, JetStream
from tests.cluster import NODES, Cluster

pytestmark = pytest.mark.anyio

STREAM = {"retention": "limits", "storage": "file", "num_replicas": 3}


async def test_a_stream_outlives_each_way_of_losing_its_leader(cluster: Cluster) -> None:
    async with Connection.connect(cluster.url) as connection:
        js = JetStream(connection)
        await js.ensure_stream({**STREAM, "name": "s", "subjects": ["s.>"]})
        assert await cluster.stepdown("s") in NODES
        await js.publish("s.k", b"1")
        stopped = await cluster.leader_of("s")
        await cluster.stop(stopped)
        assert await cluster.leader_of("s") != stopped
        await cluster.start(stopped)
        assert (await js.stream_info("s")).messages == 1
