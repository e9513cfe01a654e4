"""Garbage collection on a real NATS and in both kinds of blob stores deletes the garbage, and no needed blob."""

import itertools
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rebaser.change_set.log.commit_log import CommitLog
from rebaser.gc.collector import RUNS_KEPT
from rebaser_client import RebaserClient, Set
from rebaser_client.blobs import BlobMissing, CollectableBlobs, open_collectable
from rebaser_client.garbage import ReferenceReader
from rebaser_client.jetstream import JetStream, NoAnswerError
from rebaser_client.log.reader import LoadedState
from rebaser_core.blobs.address import address_of
from rebaser_core.blobs.garbage import FRESH_FOR, GC_KEY, StoredBlob
from rebaser_core.commit import Kind
from rebaser_core.encoding.envelope import BLOBS, MESSAGE_VERSION
from rebaser_core.errors import FencedError, TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import decode_commit
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.garbage import Collectors, PlainTables
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

IN_BLOBS = Thresholds(inline_max_updates=0, inline_max_bytes=0, on_loop_max_bytes=0)
KEY = ChangeSetKey("ws", "main")


@pytest.fixture(params=["nats", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "nats" else f"file://{tmp_path}/blobs"


@pytest.fixture
def blobs(url: str | None, js: JetStream, subjects: Subjects) -> CollectableBlobs:
    return open_collectable(url, js, subjects.blobs_bucket)


@pytest.fixture
async def client(nats_url: str, url: str | None, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix, blobs=url) as connected:
        yield connected


@pytest.fixture
def collectors(js: JetStream, subjects: Subjects, blobs: CollectableBlobs) -> Collectors:
    return Collectors(js, subjects, blobs)


async def test_garbage_is_noted_then_moved_to_the_trash_then_erased(
    collectors: Collectors, blobs: CollectableBlobs
) -> None:
    address = await blobs.put(b"garbage")
    patient = await collectors.run(grace=3600)
    assert (patient.collection.candidates, patient.trashed) == (1, 0)
    assert not (await collectors.stored())[address].trashed
    trashing = await collectors.run()
    assert (trashing.trashed, trashing.erased, trashing.collection.trash_bytes) == (1, 0, len(b"garbage"))
    assert (await collectors.stored())[address].trashed
    patient = await collectors.run(grace=3600)
    assert (patient.trashed, patient.erased) == (0, 0)
    erasing = await collectors.run()
    assert erasing.erased >= 1
    assert address not in await collectors.stored()
    with pytest.raises(BlobMissing):
        await blobs.get(address)


async def test_a_dry_run_records_and_deletes_nothing(
    js: JetStream, subjects: Subjects, collectors: Collectors, blobs: CollectableBlobs
) -> None:
    address = await blobs.put(b"garbage")
    run = await collectors.run(dry=True)
    assert (run.sequence, run.trashed, run.collection.candidates) == (0, 1, 1)
    assert list(await collectors.stored()) == [address]
    assert await js.last(subjects.commits_stream, subjects.commits(GC_KEY)) is None


async def test_each_run_is_a_commit_and_the_log_is_bounded(
    js: JetStream, subjects: Subjects, collectors: Collectors, blobs: CollectableBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser.gc.collector.RUNS_KEPT", 3)
    assert RUNS_KEPT > 3
    await blobs.put(b"garbage")
    runs = [await collectors.run(grace=3600) for _ in range(5)]
    counts = await js.subject_counts(subjects.commits_stream, subjects.commits(GC_KEY))
    assert list(counts.values()) == [3]
    last = await js.last(subjects.commits_stream, subjects.commits(GC_KEY))
    assert last is not None
    commit = decode_commit(last.headers, last.data)
    assert (commit.kind, commit.collection, commit.previous) == (Kind.GC, runs[-1].collection, runs[-2].sequence)
    since = {run.collection.began_ms for run in runs}
    assert len(since) == 5


async def test_of_two_runs_at_once_one_deletes(
    collectors: Collectors, blobs: CollectableBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = await blobs.put(b"garbage")
    join = PlainTables.join

    async def after_another(self: PlainTables, *given: Any) -> Any:
        monkeypatch.setattr(PlainTables, "join", join)
        await collectors.run(grace=3600)
        return await join(self, *given)

    monkeypatch.setattr(PlainTables, "join", after_another)
    with pytest.raises(FencedError):
        await collectors.run()
    assert not (await collectors.stored())[address].trashed


async def test_what_a_run_that_was_killed_left_is_done_by_the_next(
    collectors: Collectors, blobs: CollectableBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ended after its commit, with half of its work done."""
    garbage = {await blobs.put(b"%d" % number) for number in range(20)}
    store, discard, done = type(blobs), type(blobs).discard, itertools.count()

    async def die(self: Any, blob: StoredBlob) -> bool:
        if next(done) >= 10:
            raise TransientError("killed")
        return await discard(self, blob)

    monkeypatch.setattr(store, "discard", die)
    with pytest.raises(TransientError):
        await collectors.run()
    monkeypatch.setattr(store, "discard", discard)
    left = await collectors.stored()
    assert 0 < sum(left[address].trashed for address in garbage) < 20
    await collectors.run()
    left = await collectors.stored()
    assert all(left[address].trashed for address in garbage & left.keys())


@pytest.mark.parametrize("url", ["nats"], indirect=True)
async def test_nothing_that_is_needed_is_ever_deleted(
    js: JetStream, subjects: Subjects, client: RebaserClient, collectors: Collectors
) -> None:
    """The blobs are deltas, replaced definitions, checkpoints of several parts, forks of them, and results."""
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        with forced(IN_BLOBS):
            for number in range(12):
                updates = [Set(f"v{at}", f"{number} " * 40) for at in range(number, number + 4)]
                await client.enqueue_updates_with_reply("ws", "main", updates)
            await client.create_branch("ws", "kept", parent="main", closed=True)
            await client.create_branch("ws", "fork", parent="main")
            await client.enqueue_updates_with_reply("ws", "fork", [Set("v1", "mine")])
            await client.enqueue_updates_with_reply("ws", "main", [Set("v1", "theirs")])
            await client.rebase("ws", "fork")
    before = {name: await client.values("ws", name) for name in ("main", "kept", "fork")}
    needed = set(await ReferenceReader(js, subjects, collectors.blobs).commits())
    assert len(needed) > 20
    garbage = await collectors.blobs.put(b"garbage")
    left = await collectors.rest()
    assert needed <= left
    assert garbage not in left
    assert {name: await client.values("ws", name) for name in before} == before
    assert [one.id for one in (await client.conflicts("ws", "fork")).conflicts] == ["v1"]


@pytest.mark.parametrize("url", ["nats"], indirect=True)
async def test_commits_of_older_versions_name_their_blobs_in_their_bodies(
    js: JetStream, subjects: Subjects, client: RebaserClient, collectors: Collectors
) -> None:
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine, checkpoint_bytes=1024, history_for=0):
        with forced(IN_BLOBS):
            for number in range(12):
                await client.enqueue_updates_with_reply("ws", "main", [Set(f"v{number}", "x" * 400)])
    last = await js.last(subjects.commits_stream, subjects.commits(KEY))
    assert last is not None
    assert int(last.headers[MESSAGE_VERSION]) < 3
    before = await client.values("ws", "main")
    await collectors.rest()
    assert await client.values("ws", "main") == before


async def test_queued_requests_and_dead_letters_keep_their_blobs(
    js: JetStream, subjects: Subjects, client: RebaserClient, collectors: Collectors, blobs: CollectableBlobs
) -> None:
    with forced(IN_BLOBS):
        await client.enqueue_updates("ws", "main", [Set("a", "x" * 100)])
    (queued,) = await collectors.stored()
    escaped, dead, inside = [await blobs.put(data) for data in (b"escaped", b"dead", b"inside")]
    headers = {"X-CONTENT-TYPE": "application/json", "X-MESSAGE-TYPE": "EnqueueUpdatesRequest"}
    body = '{"v1": {"id": "r", "workspaceId": "ws", "changeSetId": "other", "updatesAddress": "%s"}}'
    spelt = escaped.replace("sha", "\\u0073ha")
    await js.publish(
        f"{subjects.root}.requests.ws.other", (body % spelt).encode(), headers | {"X-MESSAGE-VERSION": "1"}
    )
    await js.publish(f"{subjects.root}.requests.no.such", f"not a request {inside}".encode())
    payload = await blobs.put(f"a large request that names {dead}".encode())
    await js.publish(subjects.dlq(KEY), b"", {"X-Payload-Address": payload})
    found = await ReferenceReader(js, subjects, blobs).queued()
    assert set(found) == {queued, escaped, dead, inside, payload}
    assert (found[queued].message, found[payload].message) == ("request", "dead_letter")
    assert {queued, escaped, dead, inside, payload} <= await collectors.rest()


async def test_a_list_of_addresses_that_cannot_be_read_ends_the_run(
    js: JetStream, subjects: Subjects, collectors: Collectors, blobs: CollectableBlobs
) -> None:
    """Otherwise, everything that the list names would be garbage."""
    garbage = await blobs.put(b"garbage")
    await js.publish(subjects.commits(KEY), b"", {BLOBS: "@" + address_of(b"lost")})
    with pytest.raises(BlobMissing):
        await collectors.run()
    await js.purge(subjects.commits_stream, subjects.commits(KEY))
    await js.publish(subjects.commits(KEY), b"", {BLOBS: "@" + garbage})
    with pytest.raises(UnprocessableError):
        await collectors.run()


async def test_an_unreadable_list_of_candidates_lets_all_begin_anew(
    collectors: Collectors, blobs: CollectableBlobs
) -> None:
    garbage = await blobs.put(b"garbage")
    first = await collectors.run(grace=3600)
    listed = (await collectors.stored())[first.collection.listed.address]
    await blobs.discard(listed)
    trashed = (await collectors.stored())[listed.address]
    await blobs.erase(trashed)
    assert (await collectors.run(grace=0.001)).trashed == 0
    assert not (await collectors.stored())[garbage].trashed


async def test_what_is_in_the_trash_and_needed_comes_back(
    js: JetStream, subjects: Subjects, collectors: Collectors, blobs: CollectableBlobs
) -> None:
    address = await blobs.put(b"content")
    await collectors.run()
    assert (await collectors.stored())[address].trashed
    await js.publish(subjects.dlq(KEY), b"", {"X-Payload-Address": address})
    await js.purge(subjects.dlq_stream)
    # Written directly, because a get would have restored the blob.
    await js.publish(subjects.requests(KEY), address.encode())
    run = await collectors.run()
    assert run.restored == 1
    assert not (await collectors.stored())[address].trashed


# -- named blobs are fresh ---------------------------------------------------------------------------------------------


class Clock:
    """Replaces the clock of `Freshness` that counts the time while the machine is suspended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr("rebaser_client.blobs.freshness.boot_time", lambda: self.seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def log_of(js: JetStream, subjects: Subjects, blobs: CollectableBlobs) -> CommitLog:
    return CommitLog(
        js,
        subjects,
        KEY,
        LoadedState(ChangeSetState()),
        blobs=blobs,
        owner="test",
        inline_max=100,
        retry_window=60,
        now_ms=lambda: 1,
        new_id=lambda: "id",
    )


async def test_a_commit_that_names_blobs_is_not_appended_when_they_may_be_gone(
    js: JetStream, subjects: Subjects, blobs: CollectableBlobs, clock: Clock
) -> None:
    log = log_of(js, subjects, blobs)
    small = await log.encode(log.draft(Kind.REBASE, delta=(Set("a", 1),)))
    large = await log.encode(log.draft(Kind.REBASE, delta=(Set("a", "x" * 200),)))
    clock.seconds += FRESH_FOR + 1
    async with log.append_lock():
        with pytest.raises(TransientError) as raised:
            await log.publish(large)
        assert raised.value.code == "blobs_too_old"
        assert await js.last(subjects.commits_stream, subjects.commits(KEY)) is None
        assert await log.publish(small) > 0, "it names no blob"
        again = await log.encode(log.draft(Kind.REBASE, delta=(Set("a", "x" * 200),)))
        assert await log.publish(again) > 0, "its blobs were put again"


async def test_an_append_in_doubt_is_given_up_when_its_blobs_may_be_gone(
    js: JetStream, subjects: Subjects, blobs: CollectableBlobs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append may have succeeded, so the next owner has to check."""
    log = log_of(js, subjects, blobs)
    large = await log.encode(log.draft(Kind.REBASE, delta=(Set("a", "x" * 200),)))

    async def unanswered(*_: Any, **__: Any) -> None:
        clock.seconds += FRESH_FOR
        raise NoAnswerError("no answer")

    monkeypatch.setattr(js, "publish", unanswered)
    async with log.append_lock():
        with pytest.raises(FencedError, match="did not answer an append"):
            await log.publish(large)


async def test_a_client_that_slept_puts_its_updates_again(
    client: RebaserClient, collectors: Collectors, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the client's put and its publish, garbage collection has erased the blobs."""
    with forced(IN_BLOBS):
        request = await client._sender.prepare(KEY, RequestId("r"), [Set("a", 1)], math.inf, from_change_set=None)
    await collectors.rest()
    clock.seconds += FRESH_FOR + 1
    await client._sender.store(request, math.inf)
    (named,) = await ReferenceReader(*collectors.given).queued()
    assert named in await collectors.rest()
