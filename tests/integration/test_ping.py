"""The cost of a ping for a server is bounded: any sender of a ping chooses where the answer goes."""

import itertools
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import pytest

from rebaser.pings import answer_pings, describe
from rebaser.server import Server
from rebaser.settings import Settings
from rebaser_client.admin.servers import ping
from rebaser_client.jetstream import JetStream
from rebaser_client.nats.errors import NotConnectedError
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.contexts import context_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


class Engine:
    state = "ready"
    load = ((0, 0), (0, 0))
    functions: dict[str, str] = {}  # noqa: RUF012 - nothing is added
    tags: dict[str, str] = {}  # noqa: RUF012 - nothing is added


@pytest.fixture
async def answering(js: JetStream, subjects: Subjects) -> AsyncIterator[None]:
    context = context_of(js, subjects, Settings(server_id="test"), Engine())
    async with anyio.create_task_group() as group:
        group.start_soon(answer_pings, context, partial(describe, Server(context)))
        with anyio.fail_after(60):
            while not await ping(js.connection, subjects, 0.2):
                pass
        yield
        group.cancel_scope.cancel()


@pytest.mark.usefixtures("answering")
async def test_an_answer_goes_to_an_inbox_only(js: JetStream, subjects: Subjects, events: Events) -> None:
    key = ChangeSetKey("ws", "cs")
    elsewhere = (
        subjects.requests(key),
        f"$JS.API.STREAM.PURGE.{subjects.commits_stream}",
        "_INBOX.>",
        "_INBOX..a",
        "a",
    )
    for inbox in elsewhere:
        await js.connection.publish(subjects.ping, b"", reply=inbox)
    with anyio.fail_after(120):
        assert [server.id for server in await ping(js.connection, subjects, patience=60, enough=bool)] == ["test"]
    assert [event["inbox"] for event in events.named("ping_refused")] == list(elsewhere)
    assert (await js.stream_info(subjects.requests_stream)).messages == 0


async def test_an_answer_goes_under_the_reply_prefix_and_never_to_an_inbox_of_the_server(
    js: JetStream, subjects: Subjects, events: Events
) -> None:
    context = context_of(js, subjects, Settings(inbox_prefix="_INBOX", reply_prefix="_REPLY"), Engine())
    async with anyio.create_task_group() as group, js.connection.subscribe("_REPLY.*") as answers:
        group.start_soon(answer_pings, context, partial(describe, Server(context)))
        with anyio.fail_after(60):
            for number in itertools.count():
                await js.connection.publish(subjects.ping, b"", {REPLY_INBOX: "_INBOX.server.1"}, reply="_OTHER.2")
                await js.connection.publish(subjects.ping, b"", {REPLY_INBOX: f"_REPLY.{number}"}, reply="_INBOX.x")
                with anyio.move_on_after(0.2):
                    answer = await anext(answers)  # to this ping, or late to an earlier one
                    assert answer.subject in [f"_REPLY.{one}" for one in range(number + 1)]
                    break
        group.cancel_scope.cancel()
    assert {event["inbox"] for event in events.named("ping_refused")} == {"_INBOX.server.1"}


@pytest.mark.usefixtures("answering")
async def test_an_answer_that_cannot_be_sent_ends_no_server(
    js: JetStream, subjects: Subjects, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, publish = js.connection, js.connection.publish

    async def cut_off(subject: str, *rest: Any, **more: Any) -> None:
        if subject == "_INBOX.first":
            raise NotConnectedError("there is no connection to NATS")
        await publish(subject, *rest, **more)

    monkeypatch.setattr(connection, "publish", cut_off)
    await publish(subjects.ping, b"", reply="_INBOX.first")
    with anyio.fail_after(120):
        assert [server.id for server in await ping(connection, subjects, patience=60, enough=bool)] == ["test"]
    assert len(events.named("ping_not_answered")) == 1
