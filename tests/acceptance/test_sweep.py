"""No request stays without a task, whichever process has died; and a spare server takes only surplus tasks."""

from pathlib import Path

import anyio
import pytest

from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.ids import ChangeSetKey, RequestId, ulid
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from tests.support.fleet import NO_SPARK, ServerProcess, launched, servers

pytestmark = pytest.mark.anyio

SUBJECTS = Subjects()


async def strand(js: JetStream, change_set: str) -> None:
    """Store a request without publishing its task, as a client does that dies in between."""
    request = EnqueueUpdatesRequest(
        id=RequestId(ulid(1, change_set.encode().ljust(10, b".")[:10])),
        workspace_id="ws",
        change_set_id=change_set,
        updates=(Set("a", 1),),
    )
    headers, payload = encode(request)
    await js.publish(SUBJECTS.requests(ChangeSetKey("ws", change_set)), payload, headers)


async def applied(client: RebaserClient, change_set: str) -> None:
    with anyio.fail_after(120):
        while "a" not in await client.values("ws", change_set):  # noqa: ASYNC110 - servers change it
            await anyio.sleep(0.1)


async def sweeper_of(*fleet: ServerProcess) -> ServerProcess:
    """Return the server that is the sweeper, once its log says so."""
    with anyio.fail_after(120):
        while True:
            for one in fleet:
                if one.count("sweeper_pinned") > one.count("sweeper_unpinned"):
                    return one
            await anyio.sleep(0.05)


async def test_what_a_dead_client_left_is_applied_also_after_the_sweeper_died(tmp_path: Path) -> None:
    async with (
        embedded_nats(tmp_path) as nats,
        Connection.connect(nats.url) as connection,
        servers(nats.url, "one", "two", warm=False, spark=NO_SPARK, sweep_interval=1, quiescent_period=1) as fleet,
        RebaserClient.connect(nats.url) as client,
    ):
        js = JetStream(connection)
        await strand(js, "before")
        await applied(client, "before")
        first = await sweeper_of(*fleet)
        await first.kill()
        await strand(js, "after")
        await applied(client, "after")
        await sweeper_of(*(one for one in fleet if one is not first))


async def test_an_overflow_server_helps_only_when_the_others_are_behind(tmp_path: Path) -> None:
    async with (
        embedded_nats(tmp_path) as nats,
        Connection.connect(nats.url) as connection,
        launched(nats.url, "helper", spark=NO_SPARK, overflow_pending=3, sweep_interval=60) as helper,
    ):
        await helper.wait_for("server_ready")
        js = JetStream(connection)
        for number in range(2):
            await publish_task(js, SUBJECTS, ChangeSetKey("ws", f"cs-{number}"))
        await anyio.sleep(1)  # long enough for a spare server to take these, if it did so wrongly
        assert helper.count("change_set_owned") == 0
        await publish_task(js, SUBJECTS, ChangeSetKey("ws", "cs-2"))
        await helper.wait_for("change_set_owned")
        async with servers(nats.url, "regular", warm=False, spark=NO_SPARK) as (regular,):
            # The spare server takes only tasks beyond the first two; the others wait for a regular server.
            await regular.wait_for("change_set_owned")
