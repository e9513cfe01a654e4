"""A run that may not have found everything that is needed deletes nothing, and reports the reason."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from rebaser.gc import installations
from rebaser.gc.collector import Collector
from rebaser.gc.installations import leave_note
from rebaser.gc.schedule import CollectionSchedule
from rebaser.settings import Settings
from rebaser_client.blobs import BlobMissing, CollectableBlobs, open_collectable
from rebaser_client.garbage import ReferenceReader
from rebaser_client.jetstream import JetStream
from rebaser_core.blobs.address import address_of
from rebaser_core.commit import CheckpointRef, Commit, Kind
from rebaser_core.encoding.envelope import BLOBS, CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION
from rebaser_core.errors import (
    ConfigError,
    DvuError,
    RebaserError,
    TransientError,
    UnprocessableError,
    UnsupportedVersion,
)
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.messages.dead_letter import PAYLOAD_ADDRESS
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.garbage import PlainTables, Rows

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "main")


@pytest.fixture
def blobs(js: JetStream, subjects: Subjects) -> CollectableBlobs:
    return open_collectable(None, js, subjects.blobs_bucket)


def collector(
    js: JetStream, subjects: Subjects, blobs: CollectableBlobs, tables: PlainTables | None = None
) -> Collector:
    tables = tables or PlainTables(js, subjects, blobs)
    return Collector(js, subjects, blobs, tables, owner="test", new_id=lambda: f"run{time.time_ns()}", grace=0.0)


async def is_untouched(blobs: CollectableBlobs, address: str) -> bool:
    return [blob.trashed async for blob in blobs.stored() if blob.address == address] == [False]


def checkpoint_commit(address: str) -> tuple[dict[str, str], bytes]:
    reference = CheckpointRef(address, 1, 10)
    return encode_commit(Commit("id", 0, Kind.CHECKPOINT, 1, "old", None, None, checkpoint=reference))


@pytest.mark.parametrize(
    ("changed", "old", "new", "error"),
    [
        ({MESSAGE_VERSION: "99"}, b"", b"", UnsupportedVersion),
        ({CONTENT_TYPE: "application/cbor+zstd"}, b"", b"", UnprocessableError),
        ({MESSAGE_VERSION: "three"}, b"", b"", UnprocessableError),
        ({}, b"kindjcheckpoint", b"kindjcheckpoinT", UnsupportedVersion),
        ({}, b"previous", b"Previous", UnprocessableError),
        ({BLOBS: "not an address"}, b"", b"", UnprocessableError),
    ],
)
async def test_a_commit_that_this_program_does_not_understand(
    js: JetStream,
    subjects: Subjects,
    blobs: CollectableBlobs,
    changed: dict[str, str],
    old: bytes,
    new: bytes,
    error: type[RebaserError],
) -> None:
    """The checkpoint of the commit may have parts that no other message names."""
    part = await blobs.put(b"a part of its checkpoint")
    headers, data = checkpoint_commit(await blobs.put(b"a checkpoint"))
    assert old in data
    assert int(headers[MESSAGE_VERSION]) < 3
    sequence = (await js.publish(subjects.commits(KEY), data.replace(old, new), headers | changed)).sequence
    for _ in range(3):
        with pytest.raises(error, match=rf"commit {sequence} on .*\.commits\.ws\.main may need blobs"):
            await collector(js, subjects, blobs).run()
    assert await is_untouched(blobs, part)


async def test_a_checkpoint_that_is_missing_for_now(js: JetStream, subjects: Subjects, blobs: CollectableBlobs) -> None:
    """For example, a backup of the blob store is still being copied: its parts must not be deleted meanwhile."""
    part = await blobs.put(b"a part of the checkpoint")
    headers, data = checkpoint_commit(address_of(b"not copied yet"))
    await js.publish(subjects.commits(KEY), data, headers)
    with pytest.raises(BlobMissing):
        await collector(js, subjects, blobs).run()
    assert await is_untouched(blobs, part)


async def test_what_a_message_of_another_type_names_is_kept(
    js: JetStream, subjects: Subjects, blobs: CollectableBlobs
) -> None:
    """Readers of this version skip such a message, but a newer program may not."""
    address = await blobs.put(b"of a newer program")
    await js.publish(subjects.commits(KEY), address.encode(), {MESSAGE_TYPE: "Successor", MESSAGE_VERSION: "1"})
    assert set(await ReferenceReader(js, subjects, blobs).commits()) == {address}


class OtherLogs(PlainTables):
    """Reads the blobs of this installation, and the messages of another one, as a Spark that reaches another NATS
    would."""

    async def queued(self) -> Rows:
        return set()

    async def commits(self, after: int, *, split: bool) -> Rows:
        return {address_of(b"of others")}


@pytest.mark.parametrize("garbage", [b"", b"garbage"])
async def test_the_logs_that_spark_reads_are_those_of_another_installation(
    js: JetStream, subjects: Subjects, blobs: CollectableBlobs, garbage: bytes
) -> None:
    needed = await blobs.put(b"needed")
    if garbage:
        await blobs.put(garbage)
    await js.publish(subjects.requests(KEY), needed.encode())
    await collector(js, subjects, blobs).run()
    for _ in range(3):
        with pytest.raises(DvuError, match="check that Spark's machines reach the same NATS") as raised:
            await collector(js, subjects, blobs, OtherLogs(js, subjects, blobs)).run()
        assert raised.value.code == "gc_misread"
    assert await is_untouched(blobs, needed)


async def test_two_installations_in_one_store(js: JetStream, subjects: Subjects, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/blobs"
    blobs = open_collectable(url, js, "unused")
    others = await blobs.put(b"needed by the other installation")
    await blobs.register("stream REBASER_COMMITS of 2026-01-01T00:00:00Z")
    for dry in (True, False, False, False):
        with pytest.raises(
            ConfigError, match=r"(?s)another installation .*delete installations/[0-9a-f]{32} "
        ) as raised:
            await collector(js, subjects, blobs).run(dry=dry)
        assert raised.value.code == "blob_store_shared"
    assert await is_untouched(blobs, others)
    notes = await blobs.installations()
    assert len(notes) == 2, "the other one finds our note, too"


async def test_a_server_leaves_a_note_in_the_store(js: JetStream, subjects: Subjects, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/blobs"
    blobs = open_collectable(url, js, "unused")
    context = context_of(js, subjects, Settings(blobs=url))
    with anyio.fail_after(60):
        await leave_note(context)
        await leave_note(context)
    created = (await js.stream_info(subjects.commits_stream)).created
    assert list((await blobs.installations()).values()) == [f"stream {subjects.commits_stream} of {created}"]
    await collector(js, subjects, blobs).run()
    assert len(await blobs.installations()) == 1


async def test_a_server_leaves_its_note_even_if_it_never_collects(
    js: JetStream, subjects: Subjects, tmp_path: Path
) -> None:
    """Another installation may collect garbage in the same store."""
    url = f"file://{tmp_path}/blobs"
    with anyio.fail_after(60):
        await CollectionSchedule(context_of(js, subjects, Settings(blobs=url)), 0.0).run(lambda: True)
    assert len(await open_collectable(url, js, "unused").installations()) == 1


async def test_a_note_that_cannot_be_left_is_no_failed_run(
    js: JetStream, subjects: Subjects, tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installations, "PAUSE", 0.01)
    blocking = tmp_path / "blobs" / "installations"
    blocking.parent.mkdir()
    blocking.write_text("in the way")
    context = context_of(js, subjects, Settings(blobs=f"file://{tmp_path}/blobs"))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(leave_note, context)
            while not events.named("gc_note_failed"):  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.01)
            blocking.unlink()
    assert not events.named("gc_failed")
    assert len(await open_collectable(f"file://{tmp_path}/blobs", js, "unused").installations()) == 1


def test_by_default_only_blobs_in_nats_are_collected() -> None:
    assert Settings().collection_interval() == 86_400
    assert Settings(blobs="s3://shared").collection_interval() == 0
    assert Settings(blobs="s3://shared", gc_every=60).collection_interval() == 60
    assert Settings(gc_every=0).collection_interval() == 0


async def test_a_clock_that_jumped(
    js: JetStream, subjects: Subjects, blobs: CollectableBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage = await blobs.put(b"garbage")
    info = js.stream_info

    async def jumped(stream: str) -> Any:
        found = await info(stream)
        object.__setattr__(found, "now", datetime.fromtimestamp(time.time() + 3 * 86_400, UTC).isoformat())
        return found

    monkeypatch.setattr(js, "stream_info", jumped)
    with pytest.raises(TransientError, match="synchronize them") as raised:
        await collector(js, subjects, blobs).run()
    assert raised.value.code == "clocks_differ"
    assert await is_untouched(blobs, garbage)


async def test_logs_that_are_lost(js: JetStream, subjects: Subjects, blobs: CollectableBlobs) -> None:
    """The stream was purged by mistake. As long as the blobs exist, a copy of the stream can be restored."""
    for number in range(100):
        address = await blobs.put(b"%d" % number)
    await js.publish(subjects.commits(KEY), address.encode())
    assert (await collector(js, subjects, blobs).run(dry=True)).trashed == 99
    await js.purge(subjects.commits_stream, subjects.commits(KEY))
    for _ in range(3):
        with pytest.raises(ConfigError, match="no message needs any of the 100 blobs") as raised:
            await collector(js, subjects, blobs).run()
        assert raised.value.code == "gc_nothing_needed"
    assert await is_untouched(blobs, address)


@pytest.mark.parametrize("in_blob", [False, True])
async def test_an_escaped_address_in_a_request_of_a_newer_version(
    js: JetStream, subjects: Subjects, blobs: CollectableBlobs, in_blob: bool
) -> None:
    address = await blobs.put(b"updates")
    escaped = "".join(f"\\u{ord(char):04X}" for char in address)
    body = f'{{"v99": {{"updatesAt": "{escaped}"}}}}'
    headers = {CONTENT_TYPE: "application/json", MESSAGE_TYPE: "EnqueueUpdatesRequest", MESSAGE_VERSION: "99"}
    needed = {address}
    if in_blob:
        payload = await blobs.put(body.encode())
        needed.add(payload)
        await js.publish(subjects.dlq(KEY), b"", headers | {PAYLOAD_ADDRESS: payload})
    else:
        await js.publish(subjects.requests(KEY), body.encode(), headers)
    assert set(await ReferenceReader(js, subjects, blobs).queued()) == needed
