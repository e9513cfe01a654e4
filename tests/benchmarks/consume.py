"""Compares ways to read messages from a stream: `consume()`, nats-py's `fetch(100)`, and a bare subscription, as
ratios.

    python -m tests.benchmarks.consume [--messages 100000] [--sizes 128,1024] [--rounds 5] [--json]

Each way reads the same number of messages of the same size, on a connection of its own. In each round, the ways are
measured one after the other; the result is the median. `subscription` is nats-py's on a core subject, with a callback:
its fastest way, without JetStream and acks. `consume` and `fetch` read a stream in memory through a pull consumer:
first with ack policy `none`, which is comparable with a bare subscription, then with an ack for each message, until the
server has all acks. Aim: faster than `fetch` in both cases, and at least 0.7 of `subscription`.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import structlog
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser.embedded.nats import embedded_nats
from rebaser_client.jetstream import Connection, Consumer, JetStream

STREAM = "BENCH"
FETCH = 100
BLOCK = 256  # messages that are written at once for a bare subscription
AHEAD = 8 * 1024 * 1024  # maximum bytes on their way to the bare subscription
Way = Callable[[str, int, int], Awaitable[float]]
"""From the URL, count and size of the messages to the seconds it took."""


async def consume(url: str, count: int, size: int, *, ack: bool = False) -> float:
    async with Connection.connect(url) as connection, consumer_of(connection, ack) as consumer:
        js = JetStream(connection)
        started = time.perf_counter()
        async with consumer.consume() as messages:
            left = count
            async for message in messages:
                if ack:
                    await js.ack(message)
                left -= 1
                if not left:
                    break
            if ack:
                await all_acked(consumer)
            return time.perf_counter() - started


async def fetch(url: str, count: int, size: int, *, ack: bool = False) -> float:
    async with nats_py(url) as nc, Connection.connect(url) as connection, consumer_of(connection, ack) as consumer:
        subscription = await nc.jetstream().pull_subscribe_bind(consumer.name, STREAM)
        started = time.perf_counter()
        left = count
        while left:
            for message in await subscription.fetch(min(FETCH, left)):
                if ack:
                    await message.ack()
                left -= 1
        if ack:
            await nc.flush()
            await all_acked(consumer)
        return time.perf_counter() - started


async def consume_acked(url: str, count: int, size: int) -> float:
    return await consume(url, count, size, ack=True)


async def fetch_acked(url: str, count: int, size: int) -> float:
    return await fetch(url, count, size, ack=True)


async def subscription(url: str, count: int, size: int) -> float:
    """Measure nats-py without JetStream. A loop that writes raw bytes, at almost no cost for this process, provides the
    messages."""
    async with nats_py(url) as nc:
        subject, came, done = nc.new_inbox(), 0, asyncio.Event()

        async def take(_: Msg) -> None:
            nonlocal came
            came += 1
            if came == count:
                done.set()

        await nc.subscribe(subject, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await nc.flush()
        server = urlsplit(url)
        reader, writer = await asyncio.open_connection(server.hostname, server.port)
        await reader.readline()
        writer.write(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
        message = b"PUB %s %d\r\n%s\r\n" % (subject.encode(), size, b"x" * size)
        started = time.perf_counter()
        for sent in range(0, count, BLOCK):
            while (sent - came) * size > AHEAD:  # noqa: ASYNC110 - an event would be set for each message
                await asyncio.sleep(0.005)
            writer.write(message * min(BLOCK, count - sent))
            await writer.drain()
        await done.wait()
        taken = time.perf_counter() - started
        writer.close()
        await writer.wait_closed()
        return taken


WAYS: dict[str, Way] = {
    "consume": consume,
    "fetch": fetch,
    "subscription": subscription,
    "consume_acked": consume_acked,
    "fetch_acked": fetch_acked,
}
RATIOS = {
    "to_fetch": ("consume", "fetch"),
    "to_subscription": ("consume", "subscription"),
    "acked_to_fetch": ("consume_acked", "fetch_acked"),
}


@asynccontextmanager
async def nats_py(url: str) -> AsyncIterator[Client]:
    nc = await nats.connect(url)
    try:
        yield nc
    finally:
        await nc.close()


@asynccontextmanager
async def consumer_of(connection: Connection, ack: bool) -> AsyncIterator[Consumer]:
    """Create a pull consumer of all messages."""
    config = {"ack_policy": "explicit" if ack else "none", "max_ack_pending": -1}
    consumer = await JetStream(connection).create_consumer(STREAM, config)
    yield consumer
    await consumer.delete()


async def all_acked(consumer: Consumer) -> None:
    while (await consumer.info()).num_ack_pending:
        pass


async def fill(url: str, count: int, size: int) -> None:
    """Fill the stream with exactly these messages."""
    async with Connection.connect(url) as connection:
        js = JetStream(connection)
        await js.delete_stream(STREAM)
        await js.add_stream({"name": STREAM, "subjects": [f"{STREAM}.>"], "storage": "memory", "num_replicas": 1})
        await js.publish_all(f"{STREAM}.a", (b"x" * size for _ in range(count)), window=256)


async def in_turn(ways: Mapping[str, Way], count: int, size: int, rounds: int) -> dict[str, int]:
    """Return the messages per second of each way: the median of its rounds."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_nats(Path(folder)) as server:
            await fill(server.url, count, size)
            for _ in range(rounds):
                for way, run in ways.items():
                    seconds[way].append(await run(server.url, count, size))
    return {way: round(count / statistics.median(times)) for way, times in seconds.items()}


async def measure(
    ways: Mapping[str, Way], ratios: Mapping[str, tuple[str, str]], count: int, sizes: list[int], rounds: int
) -> dict[str, Any]:
    found: dict[str, Any] = {"messages": count, "sizes": {}}
    for size in sizes:
        per_s = await in_turn(ways, count, size, rounds)
        row = {name: round(per_s[one] / per_s[other], 2) for name, (one, other) in ratios.items()}
        found["sizes"][size] = {"per_s": per_s, **row}
    return found


def main(what: str | None, ways: Mapping[str, Way], ratios: Mapping[str, tuple[str, str]]) -> None:
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--sizes", default="128,1024", help="bytes of a payload; several sizes are separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    sizes = [int(size) for size in options.sizes.split(",")]
    found = uvloop.run(measure(ways, ratios, options.messages, sizes, options.rounds))
    if options.json:
        print(json.dumps(found))
        return
    for size, row in found["sizes"].items():
        print(f"{options.messages:,} messages of {size} bytes")
        for way, rate in row["per_s"].items():
            print(f"  {way:14} {rate:>9,} messages/s")
        for name, (one, other) in ratios.items():
            print(f"  {one} / {other}: {row[name]}")


if __name__ == "__main__":
    main(__doc__, WAYS, RATIOS)
