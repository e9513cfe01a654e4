"""The errors that the client raises when no server answers: each problem has an error of its own."""

import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from rebaser.embedded.nats import embedded_nats
from rebaser_client import (
    Derive,
    NotConnectedError,
    NotReadyError,
    QueueFull,
    RebaserClient,
    RequestTimeout,
    Set,
    TooLarge,
)
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import ApiError, Connection, JetStream
from rebaser_client.requests import sender
from rebaser_client.requests.sender import MAX_FORMULAS_ON_LOOP
from rebaser_core.errors import ConfigError, UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.messages import REGISTRY, EnqueueUpdatesRequest, decode, decode_updates_blob
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.conftest import Events

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


@pytest.fixture
async def full_nats(tmp_path: Path, subjects: Subjects) -> AsyncIterator[str]:
    """A nats-server with room for one megabyte, and no room left."""
    async with embedded_nats(tmp_path / "nats", jetstream={"max_file_store": 1_000_000}) as server:
        async with Connection.connect(server.url) as connection:
            js = JetStream(connection)
            await ensure_topology(js, subjects, TopologyOptions())
            with pytest.raises(ApiError):
                await js.publish_all(subjects.requests(KEY), [bytes(100_000)] * 20)
        yield server.url


async def test_a_content_type_that_no_server_reads_is_refused_before_connecting() -> None:
    with pytest.raises(ConfigError, match="'text/xml' is not supported: use application/cbor or application/json"):
        await RebaserClient.open("nats://127.0.0.1:1", content_type="text/xml")


async def test_a_full_queue_is_told_and_nothing_is_stored(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    await ensure_topology(js, subjects, TopologyOptions(max_requests_per_change_set=2))
    for number in range(2):
        await client.enqueue_updates("ws", "cs", [Set("a", number)])
    with pytest.raises(QueueFull) as full:
        await client.enqueue_updates("ws", "cs", [Set("a", 2)])
    assert (full.value.key, full.value.scope) == (KEY, "change set")
    assert 0 < full.value.retry_after < 1
    assert await js.subject_counts(subjects.requests_stream, subjects.requests(KEY)) == {subjects.requests(KEY): 2}
    await client.enqueue_updates("ws", "other", [Set("a", 0)])


async def test_a_bound_on_all_requests_is_told_as_such_and_room_is_used_again(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    await ensure_topology(js, subjects, TopologyOptions(requests_max_msgs=2))
    for name in ("one", "two"):
        await client.enqueue_updates("ws", name, [Set("a", 1)])
    with pytest.raises(QueueFull) as full:
        await client.enqueue_updates("ws", "three", [Set("a", 1)])
    assert (full.value.scope, "no room for more requests" in full.value.message) == ("all", True)
    await js.delete_message(subjects.requests_stream, 1)
    await client.enqueue_updates("ws", "three", [Set("a", 1)])


async def test_a_bound_on_the_bytes_of_all_requests_is_told(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    await ensure_topology(js, subjects, TopologyOptions(requests_max_bytes=10_000))
    await client.enqueue_updates("ws", "one", [Set("a", "x" * 6000)])
    with pytest.raises(QueueFull) as full:
        await client.enqueue_updates("ws", "two", [Set("a", "x" * 6000)])
    assert full.value.scope == "all"


async def test_a_server_without_room_is_a_full_queue(full_nats: str, subjects: Subjects) -> None:
    async with RebaserClient.connect(full_nats, prefix=subjects.prefix) as client:
        with pytest.raises(QueueFull) as full:
            await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    assert full.value.scope == "all"


async def test_a_message_too_large_for_the_stream_is_told_and_nothing_is_stored(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    await ensure_topology(js, subjects, TopologyOptions(requests_max_msg_size=1000))
    with pytest.raises(TooLarge) as refused:
        await client.enqueue_updates("ws", "cs", [Set("a", "x" * 1000)])
    assert refused.value.size > 1000
    assert await js.last(subjects.requests_stream, subjects.requests(KEY)) is None
    await client.enqueue_updates("ws", "cs", [Set("a", "x")])


@pytest.mark.usefixtures("topology")
async def test_a_request_that_no_server_would_read_is_not_sent(
    nats_url: str, js: JetStream, subjects: Subjects
) -> None:
    limits = replace(DEFAULT_LIMITS, max_request_bytes=600_000)
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix, limits=limits) as client:
        with pytest.raises(TooLarge) as refused:
            await client.enqueue_updates("ws", "cs", [Set(f"v{number}", "x" * 100) for number in range(7000)])
    assert refused.value.limit == 600_000
    assert (await js.stream_info(f"OBJ_{subjects.blobs_bucket}")).messages == 0


@pytest.mark.usefixtures("topology")
async def test_a_timeout_names_the_request_that_may_still_be_applied(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    with pytest.raises(RequestTimeout) as timeout:
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)], timeout=5)  # enough for storing it
    stored = await js.last(subjects.requests_stream, subjects.requests(KEY))
    assert stored is not None
    request = decode(stored.headers, stored.data, expect=EnqueueUpdatesRequest)
    assert request.id == timeout.value.request_id
    assert await js.last(subjects.tasks_stream, subjects.task(KEY)) is not None


@pytest.mark.usefixtures("topology")
async def test_the_first_request_of_a_change_set_wakes_an_owner_before_it_is_confirmed(
    client: RebaserClient, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is published after the confirmation would arrive a round trip later."""
    confirmed = anyio.Event()

    async def never_confirmed(*_: object) -> None:
        confirmed.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(sender.RequestSender, "store", never_confirmed)
    async with anyio.create_task_group() as group:
        group.start_soon(client.enqueue_updates_with_reply, "ws", "cs", [Set("a", 1)])
        with anyio.fail_after(60):
            await confirmed.wait()
            while await js.last(subjects.tasks_stream, subjects.task(KEY)) is None:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()


@pytest.mark.usefixtures("topology")
async def test_who_asks_to_recompute_says_how_long_to_wait(client: RebaserClient) -> None:
    with anyio.fail_after(60), pytest.raises(RequestTimeout, match=r"within 0\.2 s"):
        await client.recompute("ws", "cs", timeout=0.2)


@pytest.mark.usefixtures("topology")
async def test_a_request_too_large_for_a_message_goes_through_the_blob_store(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    updates = tuple(Set(f"v{number}", "x" * 100) for number in range(20_000))
    await client.enqueue_updates("ws", "cs", updates)
    stored = await js.last(subjects.requests_stream, subjects.requests(KEY))
    assert stored is not None
    request = decode(stored.headers, stored.data, expect=EnqueueUpdatesRequest)
    assert request.updates is None
    assert request.updates_address is not None
    blob = await open_blobs(None, js, subjects.blobs_bucket).get(request.updates_address)
    assert decode_updates_blob(blob, DEFAULT_LIMITS) == updates


async def test_a_task_without_room_is_left_to_the_sweeper_and_the_request_is_stored(
    client: RebaserClient, js: JetStream, subjects: Subjects, events: Events
) -> None:
    """A stored request will be applied, so a missing task is no failure of the request."""
    await ensure_topology(js, subjects, TopologyOptions())
    await js.ensure_stream((await js.stream_info(subjects.tasks_stream)).config | {"max_msgs": 1})  # type: ignore[operator]
    await client.enqueue_updates("ws", "other", [Set("a", 1)])
    with anyio.fail_after(60):
        request_id = await client.enqueue_updates("ws", "cs", [Set("a", 1)], timeout=60)
    stored = await js.last(subjects.requests_stream, subjects.requests(KEY))
    assert stored is not None
    assert decode(stored.headers, stored.data, expect=EnqueueUpdatesRequest).id == request_id
    assert await js.last(subjects.tasks_stream, subjects.task(KEY)) is None
    assert [event["change_set"] for event in events.named("task_publish_failed")] == ["cs"]


async def test_streams_that_are_not_there_are_told(client: RebaserClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "NOT_READY_AFTER", 0.1)
    with pytest.raises(NotReadyError):
        await client.values("ws", "cs")
    with pytest.raises(NotReadyError):
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])


async def test_no_nats_is_told() -> None:
    with pytest.raises(NotConnectedError):
        async with RebaserClient.connect("nats://127.0.0.1:1"):
            pass


@pytest.mark.usefixtures("topology")
async def test_an_invalid_update_is_refused_before_anything_is_sent(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    with pytest.raises(UnprocessableError):
        await client.enqueue_updates("ws", "cs", [Set("", 1)])
    assert await js.last(subjects.requests_stream, subjects.requests(KEY)) is None


@pytest.mark.usefixtures("topology")
@pytest.mark.parametrize("before", [1, MAX_FORMULAS_ON_LOOP // 10])
async def test_a_definition_that_can_only_fail_is_refused_before_anything_is_sent(
    client: RebaserClient, js: JetStream, nats_url: str, subjects: Subjects, before: int
) -> None:
    good = [Derive(f"d/{at}", "cel", {"a": "a"}, {"expr": f"a + {at}"}) for at in range(before)]
    formula = Derive("t", "cel", {"a": "a"}, {"expr": "a *"})
    with pytest.raises(UnprocessableError, match=rf"^update {before} of 't': line 1, column 4: Syntax error"):
        await client.enqueue_updates("ws", "cs", [*good, formula])
    with pytest.raises(UnprocessableError, match=rf"^update {before} of 't': round has no parameter 'digit'; did you"):
        await client.enqueue_updates_with_reply("ws", "cs", [*good, Derive("t", "round", {"v": "a"}, {"digit": 1})])
    assert await js.subject_counts(subjects.requests_stream, subjects.requests(KEY)) == {}
    await client.enqueue_updates("ws", "cs", good)
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix, check_formulas=False) as careless:
        await careless.enqueue_updates("ws", "cs", [formula])
    assert await js.subject_counts(subjects.requests_stream, subjects.requests(KEY)) == {subjects.requests(KEY): 2}


async def test_the_first_request_builds_the_models_of_messages_beside_the_loop(
    client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    build = REGISTRY.build

    def watched() -> None:
        threads.append(threading.current_thread())
        build()

    monkeypatch.setattr(REGISTRY, "build", watched)
    monkeypatch.setattr(REGISTRY, "is_built", False)
    monkeypatch.setattr(sender, "NOT_READY_AFTER", 0.1)
    for _ in range(2):
        with pytest.raises(NotReadyError):  # of a stream
            await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
