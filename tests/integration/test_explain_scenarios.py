"""What `explain` answers while an installation has one fault: the reason for this fault, and no other cause."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from rebaser.change_set.processor import Processor
from rebaser_client import Derive, RebaserClient, Set
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.explain import reasons
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER
from tests.support.explaining import KEY, LIMIT, answering, explained
from tests.support.fleet import NO_SPARK, launched, servers
from tests.support.owners import DOUBLE, Engine

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

# What an owner that tries again and again does at one moment or another.
TRYING = ("failing", "loading", "deciding", "handing_over", "task_on_its_way", "lease_running_out", "working")
DEADLY: dict[str, Any] = {"module": "tests.support.poisoned_server", "spark": NO_SPARK, "ack_wait": 1}


@dataclass
class Place:
    """An installation, whose servers a scenario starts. `patch` changes this process until the test ends."""

    js: JetStream
    subjects: Subjects
    client: RebaserClient
    patch: pytest.MonkeyPatch
    url: str

    def answering(self, engine: object = None, **settings: Any) -> AbstractAsyncContextManager[None]:
        return answering(self.js, self.subjects, engine, **settings)

    async def edit(self, name: str = "cs", *updates: Set | Derive) -> None:
        await self.client.enqueue_updates("ws", name, updates or [Set("a", 1)])

    async def applied(self, *updates: Set | Derive) -> None:
        await self.client.enqueue_updates_with_reply("ws", "cs", updates or [Set("a", 1)])

    async def limit(self, stream: str, **limits: int) -> None:
        """Change limits of a stream: `max_bytes` is relative to its present size."""
        info = await self.js.stream_info(stream)
        given = limits | ({"max_bytes": info.bytes + limits["max_bytes"]} if "max_bytes" in limits else {})
        await self.js.call(f"STREAM.UPDATE.{stream}", {**info.config, **given})

    async def emptied(self, stream: str) -> None:
        with anyio.fail_after(LIMIT):
            while (await self.js.stream_info(stream)).messages:  # noqa: ASYNC110 - the server deletes them
                await anyio.sleep(0.02)

    def stop_deciding(self) -> None:
        """Have owners decide no requests from now on."""

        async def wait(*_: object) -> None:
            await anyio.sleep_forever()

        self.patch.setattr(Processor, "process", wait)


Scenario = Callable[[Place], AbstractAsyncContextManager[None]]
SCENARIOS: list[tuple[Scenario, tuple[str, ...], tuple[str, ...]]] = []


def tells(*codes: str, also: tuple[str, ...] = ()) -> Callable[[Callable[[Place], AsyncIterator[None]]], Scenario]:
    """Add a scenario. While it lasts, `explain` has to name exactly these reasons, and those in `also` at most."""

    def add(make: Callable[[Place], AsyncIterator[None]]) -> Scenario:
        scenario = asynccontextmanager(make)
        SCENARIOS.append((scenario, codes, also))
        return scenario

    return add


# -- streams -----------------------------------------------------------------------------------------------------------


@tells("commits_refused", also=TRYING)
async def commits_are_refused(place: Place) -> AsyncIterator[None]:
    """Somebody has limited the size of messages."""
    async with place.answering():
        await place.applied()
        await place.limit(place.subjects.commits_stream, max_msg_size=100)
        await place.edit()
        yield


@tells("log_full", also=TRYING)
async def somebody_has_limited_the_number_of_commits(place: Place) -> AsyncIterator[None]:
    async with place.answering():
        await place.applied()
        await place.limit(place.subjects.commits_stream, max_msgs=1)
        await place.edit()
        yield


@tells("requests_full")
async def requests_of_another_change_set_fill_the_stream(place: Place) -> AsyncIterator[None]:
    async with place.answering():
        await place.applied()
        await place.emptied(place.subjects.requests_stream)
        place.stop_deciding()
        await place.edit("other")
        await place.limit(place.subjects.requests_stream, max_bytes=0)
        yield


@tells("tasks_full", "deciding")
async def the_stream_of_tasks_is_full(place: Place) -> AsyncIterator[None]:
    async with place.answering():
        place.stop_deciding()
        await place.edit()
        await explained(place.client, "deciding")
        await place.limit(place.subjects.tasks_stream, max_bytes=0)
        yield


@tells("blobs_full", "deciding")
async def the_stream_of_blobs_is_full(place: Place) -> AsyncIterator[None]:
    async with place.answering():
        await open_blobs(None, place.js, place.subjects.blobs_bucket).put(b"x" * 10_000)
        place.stop_deciding()
        await place.edit()
        await place.limit(f"OBJ_{place.subjects.blobs_bucket}", max_bytes=0)
        yield


@tells("deciding", "queue_full")
async def the_queue_is_full_because_nothing_is_decided(place: Place) -> AsyncIterator[None]:
    async with place.answering():
        place.stop_deciding()
        await place.limit(place.subjects.requests_stream, max_msgs_per_subject=2)
        await place.edit()
        await place.edit()
        yield


@tells("server_not_ready")
async def a_stream_is_missing_and_servers_may_not_create_it(place: Place) -> AsyncIterator[None]:
    async with place.answering(create_streams=False, sweep_interval=0.5):
        await place.applied()
        info = await place.js.stream_info(place.subjects.sweep_stream)
        await place.js.delete_stream(info.name)
        yield
        await place.js.call(f"STREAM.CREATE.{info.name}", info.config)


# -- tasks -------------------------------------------------------------------------------------------------------------


@tells("tasks_paused")
async def somebody_has_paused_the_delivery_of_tasks(place: Place) -> AsyncIterator[None]:
    async with place.answering():
        until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        stream = place.subjects.tasks_stream
        await place.js.call(f"CONSUMER.PAUSE.{stream}.{TASKS_CONSUMER}", {"pause_until": until})
        await place.edit()
        yield


@tells("task_not_taken")
async def only_a_spare_server_is_there(place: Place) -> AsyncIterator[None]:
    """It takes tasks only while many wait."""
    place.patch.setattr(reasons, "STUCK", 0.5)
    async with place.answering(overflow_pending=1000):
        await place.edit()
        yield


# -- requests ----------------------------------------------------------------------------------------------------------


@tells("held", also=TRYING)
async def the_blob_of_a_request_is_missing(place: Place) -> AsyncIterator[None]:
    async with place.answering(retry_for=600):
        request = EnqueueUpdatesRequest(RequestId("r"), "ws", "cs", None, f"sha256:{'0' * 64}")
        headers, payload = encode(request)
        await place.js.publish(place.subjects.requests(KEY), payload, headers)
        await publish_task(place.js, place.subjects, KEY)
        yield


@tells("on_probation", "deciding")
async def servers_have_died_of_a_request(place: Place) -> AsyncIterator[None]:
    """The first owner dies without having recorded an attempt, the second after recording one."""
    async with servers(place.url, "a", "b", warm=False, max_deaths=9, **DEADLY, prefix=place.subjects.prefix) as two:
        await place.edit("cs", Set("KILL", 1))
        with anyio.fail_after(60):
            for one in two:
                await one.process.wait()
    place.stop_deciding()
    async with place.answering(max_deaths=9):
        yield


# -- updates -----------------------------------------------------------------------------------------------------------


@tells("dvu_put_off")
async def servers_have_died_of_an_update(place: Place) -> AsyncIterator[None]:
    given = {"max_deaths": 1, "quiescent_period": 600, **DEADLY, "prefix": place.subjects.prefix}
    async with servers(place.url, "a", "b", "c", warm=False, **given):
        await place.edit("cs", Set("DEADLY", 1), Derive("b", "sum", {"of": ["DEADLY"]}))
        yield


@tells("spark_starting")
async def spark_is_starting(place: Place) -> AsyncIterator[None]:
    engine = Engine()
    engine.state = "starting"
    async with place.answering(engine):
        await place.applied(Set("a", 1), DOUBLE)
        yield


# -- machines ----------------------------------------------------------------------------------------------------------


@tells("server_busy")
async def a_server_gets_little_processor_time(place: Place) -> AsyncIterator[None]:
    async with (
        launched(place.url, "busy", module="tests.support.sparkless_server", prefix=place.subjects.prefix) as server,
        anyio.create_task_group() as group,
    ):
        await server.wait_for("server_ready")
        await place.applied()

        async def starve() -> None:
            while True:
                os.kill(server.process.pid, signal.SIGSTOP)
                await anyio.sleep(0.5)
                os.kill(server.process.pid, signal.SIGCONT)
                await anyio.sleep(0.2)

        group.start_soon(starve)
        yield
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("scenario", "codes", "also"), SCENARIOS, ids=[scenario.__name__ for scenario, _, _ in SCENARIOS]
)
async def test_the_fault_is_named_and_no_other_cause(
    scenario: Scenario,
    codes: tuple[str, ...],
    also: tuple[str, ...],
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    monkeypatch: pytest.MonkeyPatch,
    nats_url: str,
) -> None:
    async with scenario(Place(js, subjects, client, monkeypatch, nats_url)):
        told = await explained(client, *codes, also=also)
    assert told.reasons[0].text
