"""The trash of blob stores: a get or a put restores a blob from the trash; otherwise it is erased later."""

import json
import os
import time
from pathlib import Path
from typing import Any

import anyio
import nats
import pytest
from nats.js.errors import ObjectNotFoundError

from rebaser.embedded.nats import embedded_nats
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs import (
    BlobMissing,
    CollectableBlobs,
    open_collectable,
)
from rebaser_client.blobs.nats import CHUNK
from rebaser_client.blobs.nats_trash import JetStreamTrash
from rebaser_client.jetstream import Connection, JetStream, batched
from rebaser_core.blobs.garbage import StoredBlob
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.blobs import SIZES, files_in, path_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


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


async def test_nats_lists_in_batches(js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "BATCH", 2)
    blobs = JetStreamTrash(js, subjects.blobs_bucket)
    addresses = {await blobs.put(os.urandom(8)) for _ in range(5)}
    found = blobs.stored()
    first = await anext(found)
    (consumer,) = [one async for one in js.list_consumers(f"OBJ_{subjects.blobs_bucket}")]
    assert (consumer.delivered_consumer, consumer.num_pending) == (2, 3)
    assert {first.address, *[blob.address async for blob in found]} == addresses


async def test_a_client_without_the_right_to_pull_lists_blobs_too(tmp_path: Path) -> None:
    denied = {"publish": {"deny": ["$JS.API.CONSUMER.MSG.NEXT.>"]}}
    users = {"users": [{"user": "u", "password": "p", "permissions": denied}]}
    async with (
        embedded_nats(tmp_path / "nats", authorization=users) as nats,
        Connection.connect(nats.url, user="u", password="p") as connection,
    ):
        js, subjects = JetStream(connection), Subjects()
        await ensure_topology(js, subjects, TopologyOptions())
        blobs = JetStreamTrash(js, subjects.blobs_bucket)
        assert await listed(blobs) == {}
        addresses = {await blobs.put(os.urandom(8)) for _ in range(5)}
        assert set(await listed(blobs)) == addresses


async def test_a_get_takes_a_blob_out_of_the_trash(collectable: CollectableBlobs) -> None:
    data = os.urandom(3 * CHUNK)
    address = await collectable.put(data)
    assert await collectable.discard((await listed(collectable))[address])
    assert (await listed(collectable))[address].trashed
    assert await collectable.get(address) == data
    assert not (await listed(collectable))[address].trashed


async def test_a_question_whether_a_blob_is_stored_takes_it_out_of_the_trash(collectable: CollectableBlobs) -> None:
    """For parts that a checkpoint shares, its writer asks only this."""
    address = await collectable.put(b"content")
    assert await collectable.has(address)
    await collectable.discard((await listed(collectable))[address])
    assert await collectable.has(address)
    assert not (await listed(collectable))[address].trashed
    await collectable.discard((await listed(collectable))[address])
    await collectable.erase((await listed(collectable))[address])
    assert not await collectable.has(address)


async def test_a_listing_ends_though_something_is_stored_behind_the_last_description(
    js: JetStream, subjects: Subjects
) -> None:
    blobs = open_collectable(None, js, subjects.blobs_bucket)
    address = await blobs.put(b"content")
    await js.publish(f"$O.{subjects.blobs_bucket}.C.unfinished", b"a chunk of a put that is under way")
    with anyio.fail_after(60):
        assert [*await listed(blobs)] == [address]


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
    monkeypatch.setattr("rebaser_core.blobs.garbage.FRESH_FOR", -1.0)
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
    monkeypatch.setattr("rebaser_core.blobs.garbage.FRESH_FOR", -1.0)
    await collectable.put(b"content")
    assert not await collectable.discard(before)
    assert not (await listed(collectable))[address].trashed


async def test_a_blob_of_nats_that_is_put_while_it_is_discarded_stays(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put comes between the collector's read and its write."""
    blobs = JetStreamTrash(js, subjects.blobs_bucket)
    address = await blobs.put(b"content")
    before = (await listed(blobs))[address]
    replace = JetStreamTrash._replace

    async def put_first(self: JetStreamTrash, *given: Any) -> bool:
        monkeypatch.setattr(JetStreamTrash, "_replace", replace)
        monkeypatch.setattr("rebaser_core.blobs.garbage.FRESH_FOR", -1.0)
        await blobs.put(b"content")
        return await replace(self, *given)

    monkeypatch.setattr(JetStreamTrash, "_replace", put_first)
    assert not await blobs.discard(before)
    assert not (await listed(blobs))[address].trashed


async def test_a_blob_of_nats_that_is_discarded_while_it_is_put_is_put_anew(
    js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put has found the blob, and would have nothing left to do."""
    blobs = JetStreamTrash(js, subjects.blobs_bucket)
    address = await blobs.put(b"content")
    renew = JetStreamTrash._renew

    async def discard_first(self: JetStreamTrash, address: str) -> bool:
        assert await blobs.discard((await listed(blobs))[address])
        return await renew(self, address)

    monkeypatch.setattr(JetStreamTrash, "_renew", discard_first)
    assert await blobs.put(b"content") == address
    assert not (await listed(blobs))[address].trashed


async def test_a_file_that_is_put_while_it_is_discarded_can_be_read(js: JetStream, tmp_path: Path) -> None:
    """Such a store cannot compare and delete. The file is in the trash, where the next reader finds it."""
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
        await blobs.get(address)
        assert (await store.get_info(address)).name == address
        stored = await js.last(f"OBJ_{subjects.blobs_bucket}", f"$O.{subjects.blobs_bucket}.M.>")
        assert stored is not None
        assert "metadata" not in json.loads(stored.data), "if it is deleted later, it would seem to be in the trash"
    finally:
        await client.close()
