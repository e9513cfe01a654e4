"""Servers behind a slow network answer late, and are seen all the same."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from rebaser.cli import connect
from rebaser_client import RebaserClient, Set
from rebaser_client.admin import explanations, fleet_watch, status
from rebaser_client.jetstream import JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.encoding.envelope import JSON, REPLY_INBOX, dumps
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TASKS_CONSUMER, TASKS_GROUP
from tests.support.commands import rebaser_json

pytestmark = pytest.mark.anyio

LATE = 0.8  # seconds; later than servers usually answer
ANSWER: dict[str, Any] = {"id": "far", "version": "1", "owned": 1, "slots": 9, "dvu": "ready"}
ABOUT = {"phase": "active", "rtt": LATE}


@pytest.fixture
async def far(
    js: JetStream, subjects: Subjects, topology: object, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """A server that owns a change set and answers late."""
    for module in (explanations, fleet_watch, status):
        monkeypatch.setattr(module, "PATIENCE", 60.0)
    key = ChangeSetKey("ws", "cs")
    await publish_task(js, subjects, key)
    inbox = js.connection.new_inbox()
    async with js.connection.subscribe(inbox) as tasks, _answering(js, subjects):
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.tasks_stream}.{TASKS_CONSUMER}"
        await js.connection.publish(subject, dumps(JSON, {"batch": 1, "group": TASKS_GROUP}), reply=inbox)
        with anyio.fail_after(60):
            assert (await anext(tasks)).reply.startswith("$JS.ACK.")
        yield


@asynccontextmanager
async def _answering(js: JetStream, subjects: Subjects) -> AsyncIterator[None]:
    async with js.connection.subscribe(subjects.ping) as pings, anyio.create_task_group() as group:

        async def answer(inbox: str, about: dict[str, object]) -> None:
            await anyio.sleep(LATE)
            await js.connection.publish(inbox, dumps(JSON, ANSWER | about))

        async def answer_all() -> None:
            async for ping in pings:
                about: dict[str, object] = {"changeSet": ABOUT} if ping.data else {}
                group.start_soon(answer, ping.headers[REPLY_INBOX], about)

        group.start_soon(answer_all)
        yield
        group.cancel_scope.cancel()


@pytest.mark.usefixtures("far")
async def test_the_owner_is_not_taken_for_dead_and_its_network_is_named(client: RebaserClient) -> None:
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    codes = [reason.code for reason in (await client.explain("ws", "cs")).reasons]
    assert codes[:2] == ["working", "slow_network"]


@pytest.mark.usefixtures("far")
async def test_overviews_show_it(client: RebaserClient) -> None:
    assert [server.id for server in (await client.status()).servers] == ["far"]
    async with client.fleet() as fleet:
        assert [server.id for server in (await fleet.look()).servers] == ["far"]


@pytest.mark.usefixtures("far")
async def test_a_ping_with_a_long_timeout_hears_it(nats_url: str, subjects: Subjects) -> None:
    [server] = await rebaser_json("ping", "--timeout", "60", nats_url=nats_url, prefix=subjects.prefix)
    assert server["id"] == "far"


async def test_a_ping_is_repeated_and_a_late_answer_to_an_earlier_one_counts(
    js: JetStream, nats_url: str, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "PING_AGAIN", 0.01)
    async with js.connection.subscribe(subjects.ping) as pings, anyio.create_task_group() as group:

        async def answer_the_first_after_the_twentieth() -> None:
            first = await anext(pings)
            for _ in range(19):
                await anext(pings)
            await js.connection.publish(first.headers[REPLY_INBOX], dumps(JSON, ANSWER))

        group.start_soon(answer_the_first_after_the_twentieth)
        servers = await connect.ping_servers(nats_url, subjects.prefix, "far", 60.0)
        group.cancel_scope.cancel()
    assert [server.id for server in servers] == ["far"]


@pytest.mark.usefixtures("far")
async def test_tasks_that_wait_for_a_slot_delay_no_overview(
    client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "PATIENCE", 3600.0)
    monkeypatch.setitem(ANSWER, "owned", 0)
    monkeypatch.setitem(ANSWER, "held", 1)
    with anyio.fail_after(120):
        assert [server.held for server in (await client.status()).servers] == [1]


@pytest.mark.usefixtures("far")
async def test_a_task_that_no_server_has_delays_no_later_look(
    client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_watch, "PATIENCE", 3600.0)
    async with client.fleet() as fleet:
        with anyio.fail_after(120):
            await fleet.look()
            monkeypatch.setitem(ANSWER, "owned", 0)  # the task was returned with a delay
            assert [server.owned for server in (await fleet.look()).servers] == [0]
