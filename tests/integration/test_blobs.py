"""One suite for every blob store, then what is special to each."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import get_ident
from typing import Any

import anyio
import nats
import pytest
from nats.js.errors import ObjectNotFoundError

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client.blobs import (
    BlobCorrupt,
    BlobMissing,
    BlobStore,
    CollectableBlobs,
    JetStreamBlobs,
    open_blobs,
    open_collectable,
)
from rebaser_client.blobs.nats import CHUNK
from rebaser_client.blobs.nats_trash import JetStreamTrash
from rebaser_client.jetstream import Connection, JetStream, NoAnswerError, OrderedConsumer
from rebaser_client.jetstream.infos import PubAck
from rebaser_core.blob_address import address_of
from rebaser_core.errors import ConfigError, TransientError, UnprocessableError
from rebaser_core.garbage import StoredBlob
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.conftest import Events
from tests.support.nats_proxy import Frame, proxied

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 20 * CHUNK + 7]


@pytest.fixture(params=["nats", "file"])
def blobs(request: pytest.FixtureRequest, js: JetStream, subjects: Subjects, tmp_path: Path) -> BlobStore:
    url = None if request.param == "nats" else f"file://{tmp_path}/a/b"
    return open_blobs(url, js, subjects.blobs_bucket)


def path_of(folder: Path, address: str) -> Path:
    """Where the store at file://folder/a/b keeps a blob."""
    (path,) = (folder / "a" / "b").rglob(address.partition(":")[2])
    return path


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_put_is_got(blobs: BlobStore, size: int) -> None:
    data = os.urandom(size)
    address = await blobs.put(data)
    assert address == address_of(data)
    assert await blobs.get(address, max_bytes=size) == data


async def test_putting_twice_is_putting_once(blobs: BlobStore) -> None:
    assert await blobs.put(b"same") == await blobs.put(b"same")


async def test_many_at_once_do_not_disturb_each_other(blobs: BlobStore) -> None:
    contents = [b"%d" % number * CHUNK for number in range(4)] * 3
    async with anyio.create_task_group() as group:
        for data in contents:
            group.start_soon(blobs.put, data)
    for data in contents:
        assert await blobs.get(address_of(data)) == data


async def test_a_large_blob_is_hashed_beside_the_event_loop(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noted(data: bytes) -> str:
        threads.append(get_ident())
        return address_of(data)

    for module in ("store", "nats", "object_store"):
        monkeypatch.setattr(f"rebaser_client.blobs.{module}.address_of", noted)
    with forced(Thresholds(hash_on_loop_max_bytes=100)):
        address = await blobs.put(b"x" * 101)
        await blobs.get(address)
    assert threads
    assert get_ident() not in threads


async def test_what_is_not_there_is_missing(blobs: BlobStore) -> None:
    with pytest.raises(BlobMissing):
        await blobs.get(address_of(b"never put"))


async def test_no_more_is_read_than_asked_for(blobs: BlobStore) -> None:
    address = await blobs.put(b"x" * 1000)
    with pytest.raises(UnprocessableError) as refused:
        await blobs.get(address, max_bytes=999)
    assert refused.value.code == "too_large"


@pytest.mark.parametrize("address", ["", "sha256:", "sha256:../../etc/passwd", "md5:00", "sha256:" + "A" * 64])
async def test_what_is_no_address_is_refused(blobs: BlobStore, address: str) -> None:
    with pytest.raises(UnprocessableError) as refused:
        await blobs.get(address)
    assert refused.value.code == "invalid_address"


# -- files -------------------------------------------------------------------------------------------------------------


async def test_a_damaged_file_is_noticed_and_mended_by_the_next_put(js: JetStream, tmp_path: Path) -> None:
    blobs = open_blobs(f"file://{tmp_path}/a/b", js, "unused")
    address = await blobs.put(b"good")
    for damage in (b"bad!", b"much longer than it was"):
        path_of(tmp_path, address).write_bytes(damage)
        with pytest.raises(BlobCorrupt):
            await blobs.get(address)
        assert await blobs.put(b"good") == address
        assert await blobs.get(address) == b"good"


async def test_what_a_folder_does_not_keep_is_not_said_to_be_stored(
    js: JetStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is synced to disk, and read back."""
    synced: list[Path] = []

    def lose(path: Path) -> None:
        synced.append(path)
        path.unlink()

    monkeypatch.setattr("rebaser_client.blobs.object_store._sync", lose)
    with pytest.raises(BlobMissing):
        await open_blobs(f"file://{tmp_path}/a/b", js, "unused").put(b"data")
    assert len(synced) == 1


async def test_a_folder_holds_nothing_but_whole_blobs(js: JetStream, tmp_path: Path) -> None:
    blobs = open_blobs(f"file://{tmp_path}/a/b", js, "unused")
    address = await blobs.put(b"x" * 1_000_000)
    assert files_in(tmp_path) == [path_of(tmp_path, address)]


async def test_a_store_that_cannot_be_used_is_a_setting_to_be_mended(js: JetStream, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = "s3://me:secret@[::1/x", "s3://me:secret@a host/x"
    for url in ("ftp://host/x", "http://me:secret@host/x", f"file://{tmp_path}/file/x", "nonsense", "s3://", *broken):
        with pytest.raises(ConfigError) as refused:
            open_blobs(url, js, "unused")
        assert "secret" not in refused.value.message


async def test_a_store_that_is_away_is_transient_and_keeps_its_secrets(
    js: JetStream, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser_client.blobs.object_store.RETRY", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{unused_port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SECRETKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRETKEY")
    blobs = open_blobs("s3://bucket/prefix", js, "unused")
    with pytest.raises(TransientError) as away:
        await blobs.put(b"x")
    assert "SECRET" not in str(away.value)
    assert not isinstance(away.value, BlobMissing)


# -- NATS --------------------------------------------------------------------------------------------------------------


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
    import nats

    data = os.urandom(size)
    address = await in_nats.put(data)
    async with await nats.connect(nats_url) as nc:
        store = await nc.jetstream().object_store(subjects.blobs_bucket)
        found = await store.get(address)
        assert found.data == data
        assert [info.name for info in await store.list()] == [address]


async def test_we_read_theirs(in_nats: JetStreamBlobs, subjects: Subjects, nats_url: str) -> None:
    import nats

    data = os.urandom(3 * CHUNK + 1)
    async with await nats.connect(nats_url) as nc:
        store = await nc.jetstream().object_store(subjects.blobs_bucket)
        await store.put(address_of(data), data)
        assert await in_nats.get(address_of(data)) == data
        await store.delete(address_of(data))
    with pytest.raises(BlobMissing):
        await in_nats.get(address_of(data))


async def test_one_content_put_by_many_stays_readable(in_nats: JetStreamBlobs) -> None:
    """Nobody removes the chunks that another's description names."""
    data = os.urandom(5 * CHUNK)
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(in_nats.put, data)
    assert await in_nats.get(address_of(data)) == data


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
    monkeypatch.setattr("rebaser_client.blobs.nats.SILENCE", 0.2)
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
    """Lose the publish acks whose number, from 0, is among `which`."""
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
    """It is noticed before anything names it, removed, and put again."""
    monkeypatch.setattr("rebaser_client.blobs.nats.SILENCE", 0.2)
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
    with anyio.fail_after(30):
        address = await in_nats.put(data)
        assert described[0] == 0
        assert await in_nats.get(address) == data
        while await chunks_and_descriptions(js, subjects) != (1, 1):
            await js.connection.wait_connected()


@pytest.mark.parametrize("stored", [4, 3])
async def test_chunks_that_do_not_arrive_are_missing_only_if_the_server_lacks_them(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, stored: int
) -> None:
    """Else a good request would be given up because the network lost what its blob consists of."""

    async def hear_nothing(_: OrderedConsumer) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("rebaser_client.blobs.nats.SILENCE", 0.05)
    blobs = JetStreamBlobs(js, subjects.blobs_bucket)
    address = await blobs.put(os.urandom(4 * CHUNK))
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
    monkeypatch.setattr("rebaser_client.blobs.nats.SILENCE", 0.5)
    real = js.publish_all

    async def publish_late(subject: str, payloads: Iterable[bytes]) -> list[PubAck]:
        await anyio.sleep(0.8)
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
        address = await JetStreamBlobs(JetStream(connection, timeout=0.3), subjects.blobs_bucket).put(data)
        assert await JetStreamBlobs(js, subjects.blobs_bucket).get(address) == data
        while await chunks_and_descriptions(js, subjects) != (1, 1):  # the failed try's are removed in the background
            await connection.wait_connected()


@pytest.mark.parametrize("size", [100, 4 * CHUNK])
async def test_a_put_that_is_cancelled_tidies_up(
    nats_server: EmbeddedNats, js: JetStream, subjects: Subjects, size: int
) -> None:
    """Nobody else would: no description names its chunks."""
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        proxy.lose = lose_acks(lambda _: True)
        blobs = JetStreamBlobs(JetStream(connection, timeout=60), subjects.blobs_bucket)
        async with anyio.create_task_group() as group:
            group.start_soon(blobs.put, os.urandom(size))
            while await chunks_and_descriptions(js, subjects) != (1, 0):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        with anyio.fail_after(20):
            while await chunks_and_descriptions(js, subjects) != (0, 0):  # in the background
                await connection.wait_connected()


async def test_a_description_whose_ack_is_lost_is_repeated_and_its_chunks_stay(
    nats_server: EmbeddedNats, js: JetStream, subjects: Subjects
) -> None:
    data = os.urandom(4 * CHUNK)
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        proxy.lose = lose_acks(lambda number: number in (4, 5))
        address = await JetStreamBlobs(JetStream(connection, timeout=0.3), subjects.blobs_bucket).put(data)
    assert await JetStreamBlobs(js, subjects.blobs_bucket).get(address) == data
    assert await chunks_and_descriptions(js, subjects) == (1, 1)


async def test_a_description_that_nobody_confirms_may_be_there_and_has_its_chunks(
    nats_server: EmbeddedNats, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have replaced that of somebody else's put, who was told that the blob is stored."""
    monkeypatch.setattr("rebaser_client.blobs.nats.TRIES", 1)
    data = os.urandom(4 * CHUNK)
    async with proxied(nats_server.port) as proxy, Connection.connect(proxy.url) as connection:
        proxy.lose = lose_acks(lambda number: number >= 4)
        slow = JetStream(connection, timeout=0.3)
        with pytest.raises(NoAnswerError):
            await JetStreamBlobs(slow, subjects.blobs_bucket).put(data)
        await slow.stream_info(f"OBJ_{subjects.blobs_bucket}")  # behind what is done in the background
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


# -- the trash ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["nats", "file"])
def collectable(request: pytest.FixtureRequest, js: JetStream, subjects: Subjects, tmp_path: Path) -> CollectableBlobs:
    url = None if request.param == "nats" else f"file://{tmp_path}/a/b"
    return open_collectable(url, js, subjects.blobs_bucket)


async def listed(blobs: CollectableBlobs) -> dict[str, StoredBlob]:
    found = [blob async for blob in blobs.stored()]
    assert len({blob.address for blob in found}) == len(found)
    return {blob.address: blob for blob in found}


async def test_what_is_stored_is_listed_with_its_size(collectable: CollectableBlobs) -> None:
    assert await listed(collectable) == {}
    sizes = {await collectable.put(os.urandom(size)): size for size in SIZES}
    found = await listed(collectable)
    assert {address: blob.size for address, blob in found.items()} == sizes
    assert not any(blob.trashed for blob in found.values())
    assert all(abs(blob.stored_ms / 1000 - time.time()) < 60 for blob in found.values())


async def test_a_get_takes_a_blob_out_of_the_trash(collectable: CollectableBlobs) -> None:
    data = os.urandom(3 * CHUNK)
    address = await collectable.put(data)
    assert await collectable.discard((await listed(collectable))[address])
    assert (await listed(collectable))[address].trashed
    assert await collectable.get(address) == data
    assert not (await listed(collectable))[address].trashed


async def test_a_put_takes_a_blob_out_of_the_trash(collectable: CollectableBlobs) -> None:
    address = await collectable.put(b"content")
    await collectable.discard((await listed(collectable))[address])
    await collectable.put(b"content")
    assert not (await listed(collectable))[address].trashed
    assert await collectable.get(address) == b"content"


async def test_a_collector_takes_a_blob_out_of_the_trash(collectable: CollectableBlobs) -> None:
    address = await collectable.put(b"content")
    await collectable.discard((await listed(collectable))[address])
    trashed = (await listed(collectable))[address]
    assert await collectable.restore(trashed)
    assert not (await listed(collectable))[address].trashed
    assert not await collectable.restore(trashed)
    assert not await collectable.erase(trashed)
    assert await collectable.get(address) == b"content"


async def test_what_is_erased_is_gone_with_all_its_parts(
    collectable: CollectableBlobs, js: JetStream, subjects: Subjects, tmp_path: Path
) -> None:
    address = await collectable.put(os.urandom(3 * CHUNK))
    await collectable.discard((await listed(collectable))[address])
    assert await collectable.erase((await listed(collectable))[address])
    assert await listed(collectable) == {}
    with pytest.raises(BlobMissing):
        await collectable.get(address)
    assert (await js.stream_info(f"OBJ_{subjects.blobs_bucket}")).messages == 0
    assert files_in(tmp_path) == []


async def test_a_put_renews_what_is_old_and_nothing_else(
    collectable: CollectableBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = await collectable.put(b"content")
    first = (await listed(collectable))[address]
    await collectable.put(b"content")
    assert (await listed(collectable))[address] == first
    monkeypatch.setattr("rebaser_core.garbage.FRESH_FOR", -1.0)
    await collectable.put(b"content")
    renewed = (await listed(collectable))[address]
    assert renewed.version != first.version
    assert renewed.stored_ms >= first.stored_ms
    assert await collectable.get(address) == b"content"


async def test_what_was_renewed_since_it_was_listed_is_not_discarded(
    collectable: CollectableBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = await collectable.put(b"content")
    before = (await listed(collectable))[address]
    monkeypatch.setattr("rebaser_core.garbage.FRESH_FOR", -1.0)
    await collectable.put(b"content")
    assert not await collectable.discard(before)
    assert not (await listed(collectable))[address].trashed


async def test_a_blob_of_nats_that_is_put_while_it_is_discarded_stays(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put comes between the look of the collector and its write."""
    blobs = JetStreamTrash(js, subjects.blobs_bucket)
    address = await blobs.put(b"content")
    before = (await listed(blobs))[address]
    replace = JetStreamTrash._replace

    async def put_first(self: JetStreamTrash, *given: Any) -> bool:
        monkeypatch.setattr(JetStreamTrash, "_replace", replace)
        monkeypatch.setattr("rebaser_core.garbage.FRESH_FOR", -1.0)
        await blobs.put(b"content")
        return await replace(self, *given)

    monkeypatch.setattr(JetStreamTrash, "_replace", put_first)
    assert not await blobs.discard(before)
    assert not (await listed(blobs))[address].trashed


async def test_a_file_that_is_put_while_it_is_discarded_can_be_read(js: JetStream, tmp_path: Path) -> None:
    """Such a store cannot compare and delete: the file is in the trash then, where the next reader finds it."""
    blobs = open_collectable(f"file://{tmp_path}/a/b", js, "unused")
    address = await blobs.put(b"content")
    path = path_of(tmp_path, address)
    await blobs.discard((await listed(blobs))[address])
    path.unlink(missing_ok=True)  # as if the put had stored it before the collector deleted it
    assert await blobs.get(address) == b"content"
    assert path.exists()


async def test_other_clients_take_a_blob_in_the_trash_for_deleted(
    js: JetStream, subjects: Subjects, nats_url: str
) -> None:
    blobs = JetStreamTrash(js, subjects.blobs_bucket)
    address = await blobs.put(b"content")
    await blobs.discard((await listed(blobs))[address])
    client = await nats.connect(nats_url)
    try:
        store = await client.jetstream().object_store(subjects.blobs_bucket)
        with pytest.raises(ObjectNotFoundError):
            await store.get_info(address)
    finally:
        await client.close()
