"""Opening and closing a client: exceptions through its context manager, other tasks, calls that wait during the
close."""

import asyncio
import contextvars
import signal
import sys

import anyio
import pytest

from rebaser_client import ClientClosedError, NotConnectedError, RebaserClient, Request, Set
from rebaser_client.jetstream import Connection, OrderedConsumer
from rebaser_client.requests.task_publisher import TaskPublisher
from rebaser_core.errors import ConfigError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio


class Odd(BaseException):
    """An exception that is neither an `Exception` nor known to event loops."""


@pytest.mark.parametrize("kind", [Odd, SystemExit, KeyboardInterrupt, asyncio.CancelledError, ValueError])
@pytest.mark.parametrize("manager", [RebaserClient, Connection])
async def test_what_the_body_raises_leaves_as_it_is(
    nats_url: str, kind: type[BaseException], manager: type[RebaserClient] | type[Connection]
) -> None:
    raised = kind("x")
    with pytest.raises(kind) as left:
        async with manager.connect(nats_url) as opened:
            raise raised
    assert left.value is raised
    with pytest.raises(ClientClosedError):
        (opened if isinstance(opened, Connection) else opened._connection).check_open()


@pytest.mark.parametrize(
    ("body", "code", "last"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('sorry')", 1, "sorry"),
        ("os.kill(os.getpid(), signal.SIGINT); await asyncio.sleep(60)", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
async def test_a_program_that_ends_inside_ends_as_it_would_outside(
    nats_url: str, body: str, code: int, last: str
) -> None:
    program = f"""
import asyncio, os, signal, sys
from rebaser_client import RebaserClient

async def main():
    async with RebaserClient.connect(sys.argv[1]):
        {body}

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, nats_url, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    lines = err.decode().splitlines()
    assert (process.returncode, lines[-1] if lines else "") == (code, last)
    assert "Group" not in err.decode()


async def test_one_task_opens_and_another_closes(nats_url: str, subjects: Subjects) -> None:
    client = await asyncio.create_task(RebaserClient.open(nats_url, prefix=subjects.prefix))
    assert not (await client.status()).servers
    await asyncio.create_task(client.aclose())
    await client.aclose()


async def test_a_context_manager_may_be_left_by_another_task_and_in_another_context(nats_url: str) -> None:
    """Fixtures of test frameworks do that."""
    manager = RebaserClient.connect(nats_url)
    await asyncio.create_task(manager.__aenter__(), context=contextvars.Context())
    assert await asyncio.create_task(manager.__aexit__(None, None, None)) is False


async def test_opening_raises_what_is_wrong_and_leaves_no_task(unused_port: int) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(NotConnectedError):
        await RebaserClient.open(f"nats://127.0.0.1:{unused_port}")
    with pytest.raises(ConfigError):
        await RebaserClient.open("http://127.0.0.1")
    assert asyncio.all_tasks() == before


async def test_opening_that_is_cancelled_leaves_no_task(nats_url: str) -> None:
    before = asyncio.all_tasks()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await RebaserClient.open(nats_url)
    assert asyncio.all_tasks() == before


def test_another_event_loop_than_asyncio_is_refused() -> None:
    """The coroutine is driven by hand, as trio would drive it."""
    with pytest.raises(ConfigError, match="asyncio"):
        RebaserClient.connect().__aenter__().send(None)
    with pytest.raises(ConfigError, match="asyncio"):
        RebaserClient.open().send(None)


@pytest.mark.usefixtures("topology")
async def test_calls_on_a_closed_client_say_so_at_once(nats_url: str, subjects: Subjects) -> None:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        pass
    with anyio.fail_after(30):  # the calls would wait for a minute
        for call in (
            client.enqueue_updates("ws", "cs", [Set("a", 1)]),
            client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)]),
            client.values("ws", "cs"),
            client.exists("ws", "cs"),
            client.status(),
            client.wait_covered("ws", "cs", 1),
            anext(client.watch("ws", "cs")),
            anext(client.watch_progress()),
            anext(client.entries("commits")),
        ):
            with pytest.raises(ClientClosedError):
                await call


@pytest.mark.usefixtures("topology")
async def test_what_waits_while_the_client_is_closed_is_told(
    nats_url: str, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await RebaserClient.open(nats_url, prefix=subjects.prefix)
    woken, all_wait = anyio.Event(), anyio.Event()
    waiting = 0
    wait = OrderedConsumer.wait

    async def wait_and_tell(consumer: OrderedConsumer) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            all_wait.set()
        await wait(consumer)

    async def publish(*_: object) -> None:
        woken.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(OrderedConsumer, "wait", wait_and_tell)
    monkeypatch.setattr(TaskPublisher, "_publish_until_stored", publish)
    calls = [
        asyncio.ensure_future(call)
        for call in (
            client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)]),
            client.wait_covered("ws", "cs", 10**9),
            anext(client.watch("ws", "cs")),
            anext(client.watch_progress()),
            anext(client.entries("commits", follow=True)),
        )
    ]
    stored = asyncio.ensure_future(client.enqueue_updates("ws", "cs", [Set("a", 1)], request_id="other"))
    with anyio.fail_after(60):
        await woken.wait()
        await all_wait.wait()
        await client.aclose()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in found] == [ClientClosedError] * len(calls)
        assert await stored == "other"  # the request is stored, and a sweep will find it


@pytest.mark.usefixtures("topology")
async def test_nobody_looks_after_a_call_that_was_cancelled(nats_url: str, subjects: Subjects) -> None:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(client.enqueue_updates_with_reply, "ws", "cs", [Set("a", 1)])
                while not client._resender._queues:  # noqa: ASYNC110 - nothing tells when
                    await anyio.sleep(0.01)
                group.cancel_scope.cancel()
        assert not client._resender._queues


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.usefixtures("topology")
async def test_when_a_call_returns_its_task_is_stored_too(
    nats_url: str, subjects: Subjects, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """The program may end then, and with it everything in the background."""
    stored: list[ChangeSetKey] = []

    async def publish(_: TaskPublisher, key: ChangeSetKey) -> None:
        for __ in range(100):
            await anyio.lowlevel.checkpoint()
        stored.append(key)

    monkeypatch.setattr(TaskPublisher, "_publish_until_stored", publish)
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        if many:
            await client.enqueue_many([Request("ws", "cs", [Set("a", 1)])], wait="stored")
        else:
            await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        assert stored == [ChangeSetKey("ws", "cs")]
