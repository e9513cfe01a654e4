"""A stream for an ordered consumer, and a function that reads from it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from rebaser_client.jetstream import ApiError, JetStream, batched
from rebaser_client.jetstream.ordered import requests
from rebaser_client.jetstream.ordered.consumer import OrderedConsumer
from rebaser_core.streams.subjects import Subjects

STREAM = {"retention": "limits", "storage": "file", "num_replicas": 1, "max_consumers": 1_000_000}


@asynccontextmanager
async def ordered_stream(js: JetStream, subjects: Subjects) -> AsyncIterator[str]:
    """Create a stream on `<name>.>`, and delete it afterwards."""
    name: str = subjects.prefix
    await js.ensure_stream({**STREAM, "name": name, "subjects": [f"{name}.>"]})
    with pytest.MonkeyPatch.context() as patch:
        for module in (batched, requests):
            patch.setattr(module, "DELETE_BOUND", 60.0)  # on a busy machine, too, closing leaves no consumer behind
        yield name
    with suppress(ApiError):  # a test may have deleted the stream
        await js.call(f"STREAM.DELETE.{name}")


async def fill(js: JetStream, stream: str, count: int, start: int = 0, key: str = "k") -> None:
    await js.publish_all(f"{stream}.{key}", [b"%d" % number for number in range(start, start + count)], window=64)


async def read(consumer: OrderedConsumer, count: int) -> list[int]:
    """Read the next `count` messages, and return the numbers in them."""
    return [int((await anext(consumer)).data) for _ in range(count)]


async def count_consumers(js: JetStream, stream: str) -> int:
    return (await js.stream_info(stream)).consumers
