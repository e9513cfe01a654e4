"""The sweeper runs garbage collection when a run is due."""

import anyio
import pytest

from rebaser.gc.schedule import CollectionSchedule
from rebaser.settings import Settings
from rebaser_client.blobs import CollectableBlobs, open_collectable
from rebaser_client.jetstream import JetStream
from rebaser_core.blobs.garbage import GC_KEY
from rebaser_core.errors import DvuError
from rebaser_core.messages import decode_commit
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.garbage import Collectors, PlainTables
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def blobs(js: JetStream, subjects: Subjects) -> CollectableBlobs:
    return open_collectable(None, js, subjects.blobs_bucket)


@pytest.fixture
def collectors(js: JetStream, subjects: Subjects, blobs: CollectableBlobs) -> Collectors:
    return Collectors(js, subjects, blobs)


class ClosablePlainTables(PlainTables):
    async def close(self) -> None: ...


async def test_the_sweeper_collects_garbage_when_a_run_is_due(
    js: JetStream, subjects: Subjects, collectors: Collectors, blobs: CollectableBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage = await blobs.put(b"garbage")
    monkeypatch.setattr("rebaser.gc.schedule.SparkTables", lambda *_, **__: ClosablePlainTables(*collectors.given))
    engine = Engine()
    engine.url = "sc://nowhere"  # type: ignore[attr-defined]
    subject = subjects.commits(GC_KEY)
    async with serving(js, subjects, engine, sweep_interval=0.5, gc_every=0.5):
        with anyio.fail_after(60):
            while (await js.subject_counts(subjects.commits_stream, subject)).get(subject, 0) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.1)
    last = await js.last(subjects.commits_stream, subject)
    assert last is not None
    collection = decode_commit(last.headers, last.data).collection
    assert collection is not None
    assert collection.grace_ms == 86_400_000
    assert not (await collectors.stored())[garbage].trashed


async def test_a_run_is_due_by_the_clock_of_nats_whoever_asks(
    js: JetStream, subjects: Subjects, collectors: Collectors
) -> None:
    context = context_of(js, subjects, Settings())
    assert not await CollectionSchedule(context, 3600).is_due(), "the stream is new"
    assert await CollectionSchedule(context, 0.0001).is_due()
    await collectors.run()
    assert not await CollectionSchedule(context, 3600).is_due()


async def test_a_run_that_fails_is_tried_again(
    js: JetStream, subjects: Subjects, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    engine.url = "sc://nowhere"  # type: ignore[attr-defined]

    async def down() -> None:
        raise DvuError("Spark is not available: down", code="spark_down")

    engine.available = down  # type: ignore[method-assign]
    async with serving(js, subjects, engine, sweep_interval=0.5, gc_every=0.5):
        with anyio.fail_after(60):
            while len(events.named("gc_failed")) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.1)
