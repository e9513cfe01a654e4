"""An ordered consumer on a connection that breaks, delays, and loses deliveries, heartbeats and other statuses."""

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.jetstream import Connection, JetStream, OrderedConsumer
from rebaser_client.jetstream.ordered import requests
from rebaser_core.streams.subjects import Subjects
from tests.support.nats_proxy import Faults, proxied

pytestmark = pytest.mark.anyio

BATCH = 5_000


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_whatever_is_lost_late_or_cut_each_message_comes_once_and_in_order(
    js: JetStream, nats_server: EmbeddedNats, subjects: Subjects, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "INACTIVE", 3600)  # the server removes no consumers by itself
    name = subjects.prefix
    await js.ensure_stream({"name": name, "subjects": [f"{name}.>"], "storage": "memory", "max_consumers": -1})
    faults = Faults(seed=count)
    got: list[int] = []

    async def fill() -> None:
        for start in range(0, count, BATCH):
            await js.publish_all(f"{name}.k", [b"%d" % number for number in range(start, start + BATCH)], window=256)
            quiet = faults.counts["heartbeat"] + (start < 3 * BATCH)
            # The server sends heartbeats only while there are no messages.
            while faults.counts["heartbeat"] < quiet:  # noqa: ASYNC110 - the proxy tells nobody
                await anyio.sleep(0.01)

    async with anyio.create_task_group() as group, proxied(nats_server.port) as proxy:
        group.start_soon(fill)
        async with Connection.connect(proxy.url) as connection:
            lossy = JetStream(connection)
            proxy.lose, proxy.delay = faults.lose, faults.delay
            next_cut = 0
            async with OrderedConsumer(lossy, name, f"{name}.k", idle_heartbeat=0.1) as consumer:
                while len(got) < count:
                    await consumer.wait()
                    got += [int(message.data) for message in consumer.take(faults.random.randrange(1, 1000))]
                    if len(got) >= next_cut:
                        next_cut = len(got) + faults.random.randrange(BATCH // 2)
                        faults.counts["cut"] += 1
                        await proxy.cut()
            # A consumer of a broken connection is deleted with the next one.
            while (await js.stream_info(name)).consumers:
                await connection.wait_connected()
    assert got == list(range(count))
    print(f"{count} messages: {dict(faults.counts)}")
    assert all(faults.counts[kind] for kind in ("delivery", "heartbeat", "cut", "to_client", "to_server"))
    await js.call(f"STREAM.DELETE.{name}")
