"""Blobs in NATS are compatible with other clients of its object store, even after damage and lost acks."""

import json
import os
from collections.abc import Callable, Iterable

import anyio
import nats
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.blobs import (
    BlobCorrupt,
    BlobMissing,
    JetStreamBlobs,
)
from rebaser_client.blobs.nats import CHUNK
from rebaser_client.jetstream import Connection, JetStream, NoAnswerError, OrderedConsumer
from rebaser_client.jetstream.infos import PubAck
from rebaser_core.blobs.address import address_of
from rebaser_core.errors import TransientError
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.blobs import SIZES
from tests.support.nats_proxy import Frame, proxied

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def in_nats(js: JetStream, subjects: Subjects) -> JetStreamBlobs:
    return JetStreamBlobs(js, subjects.blobs_bucket)


async def chunks_and_descriptions(js: JetStream, subjects: Subjects) -> tuple[int, int]:
    bucket = subjects.blobs_bucket
    counts = await js.subject_counts(f"OBJ_{bucket}", f"$O.{bucket}.>")
    return sum(".C." in subject for subject in counts), sum(".M." in subject for subject in counts)


@pytest.mark.parametrize("size", SIZES)
async def test_other_object_store_clients_read_ours(
    in_nats: JetStreamBlobs, subjects: Subjects, nats_url: str, size: int
) -> None:

    data = os.urandom(size)
    address = await in_nats.put(data)
    async with await nats.connect(nats_url) as nc:
        store = await nc.jetstream().object_store(subjects.blobs_bucket)
        found = await store.get(address)
        assert found.data == data
        assert [info.name for info in await store.list()] == [address]


async def test_we_read_theirs(in_nats: JetStreamBlobs, subjects: Subjects, nats_url: str) -> None:

    data = os.urandom(3 * CHUNK + 1)
    async with await nats.connect(nats_url) as nc:
        store = await nc.jetstream().object_store(subjects.blobs_bucket)
        await store.put(address_of(data), data)
        assert await in_nats.get(address_of(data)) == data
        await store.delete(address_of(data))
    with pytest.raises(BlobMissing):
        await in_nats.get(address_of(data))


async def test_one_content_put_by_many_stays_readable(in_nats: JetStreamBlobs) -> None:
    """No put removes the chunks that the description of another put names."""
    data = os.urandom(5 * CHUNK)
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(in_nats.put, data)
    assert await in_nats.get(address_of(data)) == data


async def test_a_put_whose_description_was_replaced_looks_whether_that_blob_can_be_read(
    in_nats: JetStreamBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another put of the same content came later, but its chunks are gone."""
    publish = JetStreamBlobs._publish_description

    async def replace(self: JetStreamBlobs, address: str, description: bytes) -> None:
        monkeypatch.setattr(JetStreamBlobs, "_publish_description", publish)
        await publish(self, address, description)
        await publish(self, address, json.dumps({**json.loads(description), "nuid": "another"}).encode())

    monkeypatch.setattr(JetStreamBlobs, "_publish_description", replace)
    assert await in_nats.get(await in_nats.put(b"content")) == b"content"


async def test_the_second_put_stores_nothing(in_nats: JetStreamBlobs, js: JetStream, subjects: Subjects) -> None:
    data = os.urandom(2 * CHUNK)
    await in_nats.put(data)
    before = await js.stream_info(f"OBJ_{subjects.blobs_bucket}")
    await in_nats.put(data)
    after = await js.stream_info(f"OBJ_{subjects.blobs_bucket}")
    assert after.last_sequence == before.last_sequence


@pytest.mark.parametrize("size", [100, 3 * CHUNK])
@pytest.mark.parametrize("damage", ["chunk", "shorter", "description", "digest"])
async def test_damage_is_noticed_and_mended_by_the_next_put(
    in_nats: JetStreamBlobs, js: JetStream, subjects: Subjects, damage: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser_client.blobs.nats.SILENCE", 1.0 if damage == "shorter" else 60.0)
    data = os.urandom(size)
    address = await in_nats.put(data)
    stream, bucket = f"OBJ_{subjects.blobs_bucket}", subjects.blobs_bucket
    meta = await js.last(stream, f"$O.{bucket}.M.>")
    chunk = await js.last(stream, f"$O.{bucket}.C.>")
    assert meta is not None
    assert chunk is not None
    if damage == "chunk":
        await js.delete_message(stream, chunk.sequence)
        await js.publish(chunk.subject, b"!" * len(chunk.data))
    elif damage == "shorter":
        await js.delete_message(stream, chunk.sequence)
    elif damage == "description":
        await js.publish(meta.subject, b'{"name": [1')
    else:
        await js.publish(meta.subject, meta.data.replace(b"SHA-256=", b"SHA-256=xx"))
    with pytest.raises((BlobCorrupt, BlobMissing)):
        await in_nats.get(address)
    assert await in_nats.put(data) == address
    assert await in_nats.get(address) == data
    assert await js.subject_counts(stream, f"$O.{bucket}.M.>") == {meta.subject: 1}


@pytest.mark.parametrize(
    "description",
    [
        b"[]",
        b"null",
        b"{}",
        b'{"nuid": "a.>", "size": 3, "chunks": 1, "digest": "SHA-256=x"}',
        b'{"nuid": "a", "size": -1, "chunks": 1, "digest": "SHA-256=x"}',
        b'{"nuid": "a", "size": 1e99, "chunks": true, "digest": "SHA-256=x"}',
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
async def test_a_foreign_description_is_damage_and_nothing_worse(
    in_nats: JetStreamBlobs, js: JetStream, subjects: Subjects, description: bytes
) -> None:
    address = await in_nats.put(b"x")
    meta = await js.last(f"OBJ_{subjects.blobs_bucket}", f"$O.{subjects.blobs_bucket}.M.>")
    assert meta is not None
    await js.publish(meta.subject, description)
    with pytest.raises(BlobCorrupt):
        await in_nats.get(address)


def lose_acks(which: Callable[[int], bool]) -> Callable[[Frame], bool]:
    """Lose the publish acks whose numbers (from 0) `which` selects."""
    count = 0

    def lose(frame: Frame) -> bool:
        nonlocal count
        if not frame.payload.startswith(b'{"stream":'):
            return False
        count += 1
        return which(count - 1)

    return lose


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("damage", ["other", "shorter", "missing"])
async def test_what_is_stored_otherwise_than_it_was_sent_is_no_blob(
    in_nats: JetStreamBlobs,
    js: JetStream,
    subjects: Subjects,
    monkeypatch: pytest.MonkeyPatch,
    chunks: int,
    damage: str,
) -> None:
    """The damage is noticed before a message names the blob, and the blob is removed and put again."""
    monkeypatch.setattr("rebaser_client.blobs.nats.SILENCE", 1.0)
    data = os.urandom(chunks * CHUNK)
    real, first, described = js.publish_all, [True], list[int]()

    async def publish_all(subject: str, payloads: Iterable[bytes]) -> list[PubAck]:
        *some, last = payloads
        if first:
            first.pop()
            some += {"other": [bytes(len(last))], "shorter": [last[:-1]], "missing": []}[damage]
        else:
            described.append((await chunks_and_descriptions(js, subjects))[1])
            some.append(last)
        return await real(subject, some)

    monkeypatch.setattr(js, "publish_all", publish_all)
    with anyio.fail_after(60):
        address = await in_nats.put(data)
        assert described[0] == 0
        assert await in_nats.get(address) == data
        while await chunks_and_descriptions(js, subjects) != (1, 1):
            await js.connection.wait_connected()


@pytest.mark.parametrize("stored", [4, 3])
async def test_chunks_that_do_not_arrive_are_missing_only_if_the_server_lacks_them(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, stored: int
) -> None:
    """Otherwise, a valid request would be given up because the network lost a part of its blob."""

    async def hear_nothing(_: OrderedConsumer) -> None:
        await anyio.sleep_forever()

    blobs = JetStreamBlobs(js, subjects.blobs_bucket)
    address = await blobs.put(os.urandom(4 * CHUNK))
    monkeypatch.setattr("rebaser_client.blobs.nats.SILENCE", 0.05)
    monkeypatch.setattr(OrderedConsumer, "wait", hear_nothing)
    if stored < 4:
        last = await js.last(f"OBJ_{subjects.blobs_bucket}", f"$O.{subjects.blobs_bucket}.C.>")
        assert last is not None
        await js.delete_message(f"OBJ_{subjects.blobs_bucket}", last.sequence)
    with pytest.raises(TransientError) as caught:
        await blobs.get(address, max_bytes=4 * CHUNK)
    assert caught.value.code == ("blob_timeout" if stored == 4 else "blob_missing")


async def test_chunks_that_are_still_on_their_way_are_not_missing(
    in_nats: JetStreamBlobs, js: JetStream, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser_client.blobs.nats.SILENCE", 1.5)
    real = js.publish_all

    async def publish_late(subject: str, payloads: Iterable[bytes]) -> list[PubAck]:
        await anyio.sleep(2.0)
        return await real(subject, payloads)

    monkeypatch.setattr(js, "publish_all", publish_late)
    await in_nats.put(os.urandom(3 * CHUNK))
    assert events.named("blob_put_failed") == []


async def test_a_chunk_whose_ack_is_lost_makes_it_begin_again_and_tidy_up(
    nats_server: EmbeddedNats, js: JetStream, subjects: Subjects
) -> None:
    data = os.urandom(4 * CHUNK)
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        proxy.lose = lose_acks(lambda number: number == 2)
        address = await JetStreamBlobs(JetStream(connection, timeout=1.5), subjects.blobs_bucket).put(data)
        assert await JetStreamBlobs(js, subjects.blobs_bucket).get(address) == data
        # The chunks of the failed attempt are removed in the background.
        while await chunks_and_descriptions(js, subjects) != (1, 1):
            await connection.wait_connected()


@pytest.mark.parametrize("size", [100, 4 * CHUNK])
async def test_a_put_that_is_cancelled_tidies_up(
    nats_server: EmbeddedNats, js: JetStream, subjects: Subjects, size: int
) -> None:
    """Nobody else removes its chunks, because no description names them."""
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        proxy.lose = lose_acks(lambda _: True)
        blobs = JetStreamBlobs(JetStream(connection, timeout=60), subjects.blobs_bucket)
        async with anyio.create_task_group() as group:
            group.start_soon(blobs.put, os.urandom(size))
            while await chunks_and_descriptions(js, subjects) != (1, 0):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        with anyio.fail_after(60):
            while await chunks_and_descriptions(js, subjects) != (0, 0):  # removed in the background
                await connection.wait_connected()


async def test_a_description_whose_ack_is_lost_is_repeated_and_its_chunks_stay(
    nats_server: EmbeddedNats, js: JetStream, subjects: Subjects
) -> None:
    data = os.urandom(4 * CHUNK)
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        proxy.lose = lose_acks(lambda number: number in (4, 5))
        address = await JetStreamBlobs(JetStream(connection, timeout=1.5), subjects.blobs_bucket).put(data)
    assert await JetStreamBlobs(js, subjects.blobs_bucket).get(address) == data
    assert await chunks_and_descriptions(js, subjects) == (1, 1)


async def test_a_description_that_nobody_confirms_may_be_there_and_has_its_chunks(
    nats_server: EmbeddedNats, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The description may have replaced that of another put, whose caller believes that the blob is stored."""
    monkeypatch.setattr("rebaser_client.blobs.nats.TRIES", 1)
    data = os.urandom(4 * CHUNK)
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        proxy.lose = lose_acks(lambda number: number >= 4)
        slow = JetStream(connection, timeout=1.5)
        with pytest.raises(NoAnswerError):
            await JetStreamBlobs(slow, subjects.blobs_bucket).put(data)
        await slow.stream_info(f"OBJ_{subjects.blobs_bucket}")  # answered after everything that runs in the background
        assert await chunks_and_descriptions(js, subjects) == (1, 1)
        assert await JetStreamBlobs(js, subjects.blobs_bucket).get(address_of(data)) == data


async def test_a_put_that_cannot_succeed_says_so(
    nats_server: EmbeddedNats, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser_client.blobs.nats.TRIES", 2)
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        proxy.lose = lose_acks(lambda _: True)
        with pytest.raises(NoAnswerError):
            await JetStreamBlobs(JetStream(connection, timeout=0.1), subjects.blobs_bucket).put(b"x")
