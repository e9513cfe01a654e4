"""A long update reports its progress: in the log, to watchers, to `rebaser status`, and to `rebaser tail`."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.pings import answer_pings, describe
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser_client import Derive, DvuProgress, RebaserClient, Set, Update
from rebaser_client.jetstream import JetStream
from rebaser_core import thresholds
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds
from tests.conftest import Events
from tests.support.commands import ROOT, command, environment, rebaser_json
from tests.support.contexts import context_of
from tests.support.history import commit_of
from tests.support.owners import serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

EVERY = 0.1  # seconds
GRAPH: list[Update] = [
    *(Set(f"a{at}", at) for at in range(4)),
    *(Derive(f"b{at}", "sum", {"x": f"a{at}"}) for at in range(4)),
]


class Engine:
    """Returns the results of the first packet at once, and those of the others after `go`."""

    state = "ready"
    load = ((0, 0), (0, 0))
    functions: dict[str, str] = {}  # noqa: RUF012 - nothing is added
    tags = {"ws.cs": "rebaser-1"}  # noqa: RUF012 - nothing is added

    def __init__(self) -> None:
        self.go = anyio.Event()

    async def available(self) -> None:
        return None

    async def evaluate(
        self, packets: Sequence[bytes], *, arrived: Callable[[int, int], None], **_: object
    ) -> list[list[bytes]]:
        first = evaluate_packet(packets[0])
        arrived(1, 0)
        await self.go.wait()
        return [first, *(evaluate_packet(packet) for packet in packets[1:])]


@pytest.fixture
async def engine() -> Engine:
    return Engine()


@pytest.fixture
async def server(
    js: JetStream, subjects: Subjects, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Server]:
    """A server whose updates have a packet for each value."""
    monkeypatch.setattr(thresholds, "now", Thresholds(packet_bytes=1, task_min_elements=1))
    context = context_of(js, subjects, Settings(server_id="test", progress_every=EVERY), engine)
    made, ready = Server(context), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(made.run, ready.set)
        group.start_soon(answer_pings, context, partial(describe, made))
        with anyio.fail_after(60):
            await ready.wait()
        yield made
        group.cancel_scope.cancel()


async def first_told(client: RebaserClient, matches: Callable[[DvuProgress], bool]) -> DvuProgress:
    async with aclosing(client.watch_progress("ws", "cs")) as told:
        async for one in told:
            if matches(one):
                return one
    raise AssertionError("nothing was told")


async def first_line(*arguments: str, env: dict[str, str], kind: str) -> dict[str, Any]:
    """Return the first object of that kind that a command prints, and stop the command."""
    async with await anyio.open_process(command(*arguments), cwd=ROOT, env=env, stderr=None) as process:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                found: dict[str, Any] = json.loads(await lines.receive_until(b"\n", 65_536))
                if found["kind"] == kind:
                    return found
        finally:
            process.terminate()


async def test_it_is_told_to_everybody_who_looks_and_to_nobody_afterwards(
    server: Server, engine: Engine, client: RebaserClient, nats_url: str, subjects: Subjects, events: Events
) -> None:
    with anyio.fail_after(200):
        response = await client.enqueue_updates_with_reply("ws", "cs", GRAPH)
        told = await first_told(client, lambda one: one.done > 0)
        commit = commit_of(response)
        assert told == DvuProgress("ws", "cs", "test", commit, 1, 4, told.seconds)
        assert told.seconds >= EVERY

        env = environment(nats_url=nats_url, prefix=subjects.prefix)
        line = await first_line("tail", "ws", "cs", "--follow", "--json", env=env, kind="progress")
        assert (line["workspaceId"], line["changeSetId"], line["server"]) == ("ws", "cs", "test")
        assert (line["covers"], line["done"], line["total"], line["sequence"]) == (commit, 1, 4, None)

        update = None
        while update is None:  # a busy server may answer late
            [shown] = await rebaser_json("status", nats_url=nats_url, prefix=subjects.prefix)
            [change_set] = shown["changeSets"]
            update = change_set["update"]
        assert (update["done"], update["total"]) == (1, 4)
        assert (update["stage"], update["plan"], update["wave"]) == ("spark", "packets", 1)
        assert update["sparkTag"] == "rebaser-1"

        logged = next(entry for entry in events.named("dvu_progress") if entry["done"])
        assert (logged["workspace"], logged["change_set"], logged["total"]) == ("ws", "cs", 4)

        engine.go.set()
        await client.wait_covered("ws", "cs", commit)
        while server.census().slow_updates:  # noqa: ASYNC110 - the commit is seen before the update has ended
            await anyio.sleep(0.01)
        assert [one.update for one in (await client.status("ws")).change_sets] == [None]


async def test_nothing_is_told_of_an_update_that_is_done_sooner(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, events: Events
) -> None:
    engine.go.set()
    async with serving(js, subjects, engine, progress_every=3600):
        await client.enqueue_updates_with_reply("ws", "cs", GRAPH, wait="derived")
    assert events.named("dvu_ended")
    assert events.named("dvu_progress") == []


async def test_what_no_server_of_ours_told_is_passed_over(
    server: Server, engine: Engine, client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:

            async def tell_lies() -> None:
                while True:
                    await js.connection.publish(subjects.progress("ws", "cs"), b"\xff")
                    await anyio.sleep(0.01)

            group.start_soon(tell_lies)
            await client.enqueue_updates_with_reply("ws", "cs", GRAPH)
            assert (await first_told(client, lambda _: True)).total == 4
            group.cancel_scope.cancel()
        engine.go.set()
