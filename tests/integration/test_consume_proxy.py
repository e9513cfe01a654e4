"""`consume` on a connection that breaks, delays, and loses deliveries, heartbeats and other statuses."""

from contextlib import suppress
from typing import Any

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.jetstream import Connection, JetStream, PullMessage, PullWarning
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.streams.subjects import Subjects
from tests.support.nats_proxy import Faults, proxied

pytestmark = pytest.mark.anyio

BATCH = 5_000
LONG = (pytest.mark.long, pytest.mark.timeout(3000))


@pytest.mark.parametrize(
    ("count", "limit"),
    [
        (10_000, {"max_messages": 200}),
        (10_000, {"max_bytes": 40_000}),
        pytest.param(100_000, {"max_messages": 500}, marks=LONG),
        pytest.param(100_000, {"max_bytes": 100_000}, marks=LONG),
    ],
)
async def test_whatever_is_lost_late_or_cut_all_messages_come_and_none_is_left(
    js: JetStream, nats_server: EmbeddedNats, subjects: Subjects, count: int, limit: dict[str, Any]
) -> None:
    stream = await js.add_stream({"name": subjects.prefix, "subjects": [f"{subjects.prefix}.>"], "storage": "memory"})
    # A lost delivery is repeated after the ack wait.
    wanted = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 1_000_000_000, "max_ack_pending": -1}
    consumer = await stream.create_consumer(wanted)
    faults = Faults(seed=count)
    faults.shares["delivery"] = 0.002
    times = [0] * count  # how often each message was read
    silence = anyio.Event()
    next_cut = 1  # in messages

    def warned(warn: PullWarning) -> None:
        if warn.event == "pull_heartbeats_missed":
            silence.set()

    async def fill_and_wait() -> None:
        """Publish, with a pause after the first batch until it was noticed. Return when nothing is left."""
        for start in range(0, count, BATCH):
            numbers = range(start, start + BATCH)
            payloads = [b"%d " % number + b"x" * (number % 50) for number in numbers]
            await js.publish_all(f"{stream.name}.k", payloads, window=256)
            if not start:
                usual = faults.shares
                faults.shares = {**usual, "heartbeat": 1.0, "status": 1.0}
                await silence.wait()
                faults.shares["heartbeat"] = 0.0  # otherwise, no pull would last until its end
                while not faults.counts["status"]:  # noqa: ASYNC110 - the proxy tells nobody
                    await anyio.sleep(0.01)
                faults.shares = usual
        while (info := await consumer.info()).num_pending or info.num_ack_pending:  # noqa: ASYNC110 - it tells nobody
            await anyio.sleep(0.05)
        await messages.stop()

    async def handle(message: PullMessage) -> None:
        nonlocal next_cut
        times[int(message.data.split()[0])] += 1
        with suppress(NotConnectedError):  # the client connects again
            await lossy.ack(message)
        next_cut -= 1
        if not next_cut:
            next_cut = faults.random.randrange(1, BATCH // 2)
            faults.counts["cut"] += 1
            await proxy.cut()

    with anyio.fail_after(count / 40):  # a bound against hanging
        async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
            lossy = JetStream(connection)
            proxy.lose, proxy.delay = faults.lose, faults.delay
            there = await lossy.get_consumer(stream.name, consumer.name)
            messages = there.consume(**limit, expires=1.0, idle_heartbeat=0.5, on_warning=warned)
            async with anyio.create_task_group() as group:
                group.start_soon(fill_and_wait)
                await messages.run(handle)
    print(f"{count} messages, {sum(times) - count} more than once: {dict(faults.counts)}")
    assert all(times)
    assert all(faults.counts[kind] for kind in ("delivery", "heartbeat", "status", "cut", "to_client", "to_server"))
    await js.delete_stream(stream.name)
