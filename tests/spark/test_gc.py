"""Garbage that is found on Spark, with the tables `blobs` and `references`, is the same as without Spark."""

from typing import Any

import pytest

from rebaser.gc.collector import Collector
from rebaser.gc.finding import find_garbage
from rebaser.gc.spark_tables import SparkTables
from rebaser.settings import Settings
from rebaser_client.blobs import open_collectable
from rebaser_client.jetstream import JetStream
from rebaser_core.blobs.address import address_of
from rebaser_core.commit import Kind
from rebaser_core.errors import DvuError
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set
from tests.spark.test_source import Writer
from tests.support.garbage import PlainTables

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.usefixtures("topology")]


async def test_garbage_is_what_no_message_names(url: str, nats_url: str, js: JetStream, subjects: Subjects) -> None:
    blobs = open_collectable(None, js, subjects.blobs_bucket)
    writer = Writer(js, subjects)
    for number in range(5):
        await writer.append(f"c{number}", Kind.REBASE, Set("a", "x" * 300 + str(number)), inline_max=1)
    garbage = {await blobs.put(b"garbage %d" % number) for number in range(20)}
    queued, dead = await blobs.put(b"queued"), await blobs.put(b"dead")
    await js.publish(f"{subjects.root}.requests.ws.c1", b'{"address": "%s"}' % queued.encode())
    await js.publish(f"{subjects.root}.dlq.ws.c1", b"", {"X-Payload-Address": dead})
    plain = await find_garbage(PlainTables(js, subjects, blobs))
    assert {blob.address for blob in plain.unneeded} == garbage
    settings = Settings(nats_url=nats_url, prefix=subjects.prefix)
    for tasks in (1, 3):
        tables = SparkTables(url, js, subjects, settings, tasks=tasks)
        try:
            found = await find_garbage(tables)
        finally:
            await tables.close()
        assert sorted(found.unneeded, key=lambda blob: blob.address) == sorted(
            plain.unneeded, key=lambda blob: blob.address
        )
        assert (found.blobs, found.size, found.needed_in_trash) == (plain.blobs, plain.size, ())


async def test_two_runs_on_spark_move_garbage_to_the_trash_and_bring_back_what_is_needed(
    url: str, nats_url: str, js: JetStream, subjects: Subjects
) -> None:
    blobs = open_collectable(None, js, subjects.blobs_bucket)
    garbage = await blobs.put(b"garbage")
    needed = await blobs.put(b"needed")
    await blobs.discard(next(iter([blob async for blob in blobs.stored() if blob.address == needed])))
    await js.publish(f"{subjects.root}.requests.ws.c1", needed.encode())
    await js.publish(f"{subjects.root}.commits.ws.c1", b"foreign")
    tables = SparkTables(url, js, subjects, Settings(nats_url=nats_url, prefix=subjects.prefix))
    try:
        collector = Collector(js, subjects, blobs, tables, owner="test", new_id=lambda: "id", grace=0.0)
        first = await collector.run()
        second = await collector.run()
    finally:
        await tables.close()
    assert (first.restored, first.trashed, first.collection.candidates) == (1, 1, 1)
    found: dict[str, Any] = {blob.address: blob async for blob in blobs.stored()}
    assert not found[needed].trashed
    assert second.collection.candidates >= 1
    assert garbage == address_of(b"garbage")


async def test_a_nats_that_is_away_is_said_in_one_line(url: str, js: JetStream, subjects: Subjects) -> None:
    tables = SparkTables(url, js, subjects, Settings(nats_url="nats://127.0.0.1:1", prefix=subjects.prefix))
    with pytest.raises(DvuError, match=r"the search for garbage on Spark failed: .*127\.0\.0\.1:1") as raised:
        await tables.stored()
    await tables.close()
    assert "\n" not in raised.value.message
