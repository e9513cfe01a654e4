"""One suite for every blob store, and tests that are special to files."""

import os
from pathlib import Path
from threading import get_ident

import anyio
import pytest

from rebaser_client.blobs import (
    BlobCorrupt,
    BlobMissing,
    BlobStore,
    open_blobs,
)
from rebaser_client.blobs.nats import CHUNK
from rebaser_client.jetstream import JetStream
from rebaser_core.blobs.address import address_of
from rebaser_core.errors import ConfigError, TransientError, UnprocessableError
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.blobs import SIZES, files_in, path_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture(params=["nats", "file"])
def blobs(request: pytest.FixtureRequest, js: JetStream, subjects: Subjects, tmp_path: Path) -> BlobStore:
    url = None if request.param == "nats" else f"file://{tmp_path}/a/b"
    return open_blobs(url, js, subjects.blobs_bucket)


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
    """A file is synced to disk and read back."""
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
