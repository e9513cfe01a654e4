"""An owner loads a change set: the log, the description of the request stream and the queue belong together."""

import pytest

from rebaser.change_set.loading import open_change_set
from rebaser.settings import Settings
from rebaser_client import RebaserClient, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.contexts import context_of
from tests.support.ordered import count_consumers

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


async def test_a_queue_of_a_replaced_stream_is_not_taken_for_one_of_the_new_stream(
    js: JetStream, subjects: Subjects, topology: TopologyOptions, client: RebaserClient
) -> None:
    context, stream = context_of(js, subjects, Settings()), subjects.requests_stream
    old = await js.stream_info(stream)
    others = JetStream(js.connection)
    await others.delete_stream(stream)
    await ensure_topology(others, subjects, topology, {stream: old.last_sequence})
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    with pytest.raises(TransientError, match="was replaced while a change set was loaded") as caught:
        await open_change_set(context, KEY, lambda: None)
    assert caught.value.code == "stream_lost"
    assert await count_consumers(js, stream) == 0
    loaded = await open_change_set(context, KEY, lambda: None)
    async with loaded.consumer:
        assert loaded.applied.stream != old.created
