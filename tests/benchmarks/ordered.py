"""Compares an ordered consumer with nats-py's in one run, as ratios.

    python -m tests.benchmarks.ordered [--messages 100000] [--sizes 128,1024] [--rounds 5] [--json]

Each way reads the same messages of a stream in memory, on a connection of its own. In each round, the ways are measured
one after the other; the result is the median. Rebaser's consumer is read in two ways: one message after the other
(`iterated`), or all waiting messages at once (`taken`). nats-py's `subscribe(ordered_consumer=True)` is also read in
two ways: `nats_py` with a callback, which is its fastest, and `nats_py_iterated` with `async for`. Aim: both ways of
Rebaser's are at least as fast as both of nats-py's.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_client.jetstream import Connection, JetStream, OrderedConsumer
from tests.benchmarks.consume import STREAM, Way, main, nats_py

SUBJECT = f"{STREAM}.a"


async def iterated(url: str, count: int, size: int) -> float:
    async with Connection.connect(url) as connection:
        started = time.perf_counter()
        async with OrderedConsumer(JetStream(connection), STREAM, SUBJECT) as consumer:
            left = count
            async for _ in consumer:
                left -= 1
                if not left:
                    break
            return time.perf_counter() - started


async def taken(url: str, count: int, size: int) -> float:
    async with Connection.connect(url) as connection:
        started = time.perf_counter()
        async with OrderedConsumer(JetStream(connection), STREAM, SUBJECT) as consumer:
            left = count
            while left:
                await consumer.wait()
                left -= len(consumer.take(left))
            return time.perf_counter() - started


async def nats_py_callback(url: str, count: int, size: int) -> float:
    came, done = 0, asyncio.Event()

    async def take(_: Msg) -> None:
        nonlocal came
        came += 1
        if came == count:
            done.set()

    async with nats_py(url) as nc:
        started = time.perf_counter()
        async with theirs(nc, take):
            await done.wait()
            return time.perf_counter() - started


async def nats_py_iterated(url: str, count: int, size: int) -> float:
    async with nats_py(url) as nc:
        started = time.perf_counter()
        async with theirs(nc, None) as subscription:
            left = count
            async for _ in subscription.messages:
                left -= 1
                if not left:
                    break
            return time.perf_counter() - started


@asynccontextmanager
async def theirs(nc: Client, cb: Callable[[Msg], Awaitable[None]] | None) -> AsyncIterator[Any]:
    subscription = await nc.jetstream().subscribe(
        SUBJECT, stream=STREAM, ordered_consumer=True, cb=cb, pending_msgs_limit=-1, pending_bytes_limit=-1
    )
    yield subscription
    await subscription.unsubscribe()  # otherwise its tasks would outlive the connection


WAYS: dict[str, Way] = {
    "iterated": iterated,
    "taken": taken,
    "nats_py": nats_py_callback,
    "nats_py_iterated": nats_py_iterated,
}
RATIOS = {
    "to_nats_py": ("iterated", "nats_py"),
    "taken_to_nats_py": ("taken", "nats_py"),
    "to_nats_py_iterated": ("iterated", "nats_py_iterated"),
}


if __name__ == "__main__":
    main(__doc__, WAYS, RATIOS)
