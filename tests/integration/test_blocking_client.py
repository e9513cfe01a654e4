"""The client for programs without an event loop, with a real server. It runs in threads; the server runs on the
loop."""

import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from anyio.to_thread import run_sync

from rebaser_client import ClientClosedError, NotConnectedError, Ref, RequestRejected, Set, Success
from rebaser_client.blocking import BlockingRebaserClient
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.support.owners import DOUBLE, Engine, serving

pytestmark = pytest.mark.anyio

BOUND = 60  # seconds; a bound against hanging


@pytest.fixture
async def client(
    topology: TopologyOptions, js: JetStream, subjects: Subjects, nats_url: str
) -> AsyncIterator[BlockingRebaserClient]:
    del topology
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine):
        connected = await run_sync(lambda: BlockingRebaserClient.open(nats_url, prefix=subjects.prefix))
        with anyio.fail_after(BOUND):
            yield connected
        await run_sync(connected.close)


async def test_a_script_edits_reads_follows_and_reverts(client: BlockingRebaserClient) -> None:
    def script() -> None:
        response = client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2), DOUBLE], wait="derived")
        assert isinstance(response.status, Success)
        assert client.values("ws", "cs")["double"].value == 4
        assert client.get("ws", "cs", Ref("double", int)) == 4
        assert client.values("ws", "cs").to_arrow().column("number").to_pylist() == [2, 4]
        with client.watch("ws", "cs", after=0) as commits:
            assert next(commits).sequence == response.status.commit
        client.enqueue_updates_with_reply("ws", "cs", [Set("a", 3)])
        client.undo("ws", "cs")
        assert client.value("ws", "cs", "a").value == 2  # type: ignore[union-attr]
        assert [entry.sequence for entry in client.log("ws", "cs", "a")][-1] == response.status.commit
        assert list(client.dead_letters.find()) == []
        with client.fleet("ws") as fleet:
            assert [server.id for server in fleet.look().servers] == []
            assert fleet.look().total == 1
        client.protect("ws", "cs")
        with pytest.raises(RequestRejected, match="protected"):
            client.enqueue_updates_with_reply("ws", "cs", [Set("a", 4)])

    await run_sync(script)


async def test_threads_share_a_client(client: BlockingRebaserClient) -> None:
    def edit(number: int) -> None:
        client.enqueue_updates_with_reply("ws", f"cs{number % 3}", [Set(f"v{number}", number)])

    def script() -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(edit, range(60)))
        found = [client.values("ws", f"cs{number}") for number in range(3)]
        assert sorted(value.value for values in found for value in values.values()) == list(range(60))  # type: ignore[type-var]

    await run_sync(script)


async def test_who_waits_when_the_client_is_closed_is_told(client: BlockingRebaserClient) -> None:
    waiting = threading.Event()

    def follow() -> None:
        with client.watch("ws", "cs", after=0) as commits:
            next(commits)
            waiting.set()
            with pytest.raises(ClientClosedError):
                next(commits)

    def close() -> None:
        client.enqueue_updates("ws", "cs", [Set("a", 1)])
        waiting.wait(BOUND)
        client.close()
        client.close()
        with pytest.raises(ClientClosedError):
            client.exists("ws", "cs")

    async with anyio.create_task_group() as group:
        group.start_soon(run_sync, follow)
        group.start_soon(run_sync, close)


async def test_a_connection_that_fails_leaves_no_thread(free_tcp_port: int) -> None:
    before = threading.active_count()

    def connect() -> None:
        with pytest.raises(NotConnectedError), BlockingRebaserClient.connect(f"nats://127.0.0.1:{free_tcp_port}"):
            pass

    await run_sync(connect)
    assert threading.active_count() <= before + 1  # the thread that this test used
