"""The queue of a change set through the API, while no server decides what is in it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rebaser.console.api import queue
from rebaser.embedded.nats import embedded_nats
from rebaser_client import RebaserClient, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.log.entries import Entry
from rebaser_core.commit import Applied, Commit, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import encode_commit
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from rebaser_core.updates import Recompute
from tests.support.web_console import WebConsole, web_console

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("shop", "main")
PATH = "/change-sets/shop/main"
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET = "Pa55w0rd"


@dataclass(frozen=True)
class Queues:
    """An installation without a server."""

    url: str
    js: JetStream


@pytest.fixture
async def queues(anyio_backend: str, tmp_path: Path) -> AsyncIterator[Queues]:
    """NATS without a server of Rebaser: four requests wait."""
    async with embedded_nats(tmp_path) as nats, Connection.connect(nats.url) as connection:
        js = JetStream(connection)
        await ensure_topology(js, Subjects(""), TopologyOptions())
        async with RebaserClient.connect(nats.url) as client:
            await client.enqueue_updates("shop", "main", [Set("a", SECRET), Set("b", 2)], author="ann", message=SECRET)
            await client.enqueue_updates("shop", "main", (), recompute=Recompute())
            await client.enqueue_updates("shop", "other", [Set("a", 1)])
        traced = {"traceparent": TRACEPARENT, "Nats-Msg-Id": "no-request"}
        await js.publish(Subjects("").requests(KEY), SECRET.encode(), traced)
        yield Queues(nats.url, js)


@pytest.fixture
async def waiting(queues: Queues) -> AsyncIterator[WebConsole]:
    async with web_console(queues.url, trace_url="http://traces/{trace_id}") as running:
        yield running


async def test_each_request_that_waits_is_told_with_its_author_kind_and_size(waiting: WebConsole) -> None:
    answer = await waiting.get(f"{PATH}/queue")
    edit, recompute, broken = answer["rows"]
    assert (edit["author"], edit["message"], edit["kind"], edit["updates"]) == ("ann", SECRET, "edit", 2)
    assert (recompute["kind"], recompute["updates"]) == ("recompute", 0)
    assert (broken["kind"], broken["requestId"], broken["updates"]) == ("unreadable", "", None)
    assert "X-CONTENT-TYPE" in broken["problem"]
    assert (broken["trace"], edit["trace"], broken["bytes"]) == (TRACE, None, len(SECRET))
    assert answer["traceUrl"] == "http://traces/{trace_id}"
    assert (answer["next"], [row["decided"] for row in answer["rows"]]) == (None, [False] * 3)


@pytest.mark.parametrize("name", ["", "MAX_BYTES", "MAX_SECONDS"])
async def test_it_is_read_in_pages(waiting: WebConsole, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole = [row["sequence"] for row in (await waiting.get(f"{PATH}/queue"))["rows"]]
    if name:
        monkeypatch.setattr(queue, name, -1)  # a page ends early, but has at least one request
    found: list[int] = []
    after: Any = 0
    while after is not None:
        page = await waiting.get(f"{PATH}/queue?limit={10 if name else 1}&after={after}")
        assert len(page["rows"]) == 1
        found.append(page["rows"][0]["sequence"])
        after = page["next"]
    assert found == whole
    assert (await waiting.get(f"{PATH}/queue?limit=1000", 400))["error"]["code"] == "invalid_argument"


async def test_one_request_is_in_memory_at_a_time(waiting: WebConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, read = list[int](), RebaserClient.queue

    async def noted(self: RebaserClient, *names: str, after: int, limit: int) -> list[Entry]:
        asked.append(limit)
        return await read(self, *names, after=after, limit=limit)

    monkeypatch.setattr(RebaserClient, "queue", noted)
    assert len((await waiting.get(f"{PATH}/queue"))["rows"]) == 3
    assert asked == [1] * 4


async def test_the_content_of_a_request_is_told_on_demand(waiting: WebConsole) -> None:
    edit, _, broken = (await waiting.get(f"{PATH}/queue"))["rows"]
    request = await waiting.get(f"{PATH}/queued?sequence={edit['sequence']}")
    assert SECRET in request["payload"]["text"]
    assert (await waiting.get(f"{PATH}/queued?sequence={broken['sequence']}"))["payload"]["text"] == ""
    other = await waiting.get(f"/change-sets/shop/other/queued?sequence={edit['sequence']}", 404)
    assert other["error"]["code"] == "no_such_request", "it is in another queue"


async def test_a_request_that_the_log_decided_does_not_wait(waiting: WebConsole, queues: Queues) -> None:
    first = (await waiting.get(f"{PATH}/queue"))["rows"][0]["sequence"]
    js = queues.js
    info = await js.stream_info(Subjects("").requests_stream)
    applied = Applied(info.created, first)
    commit = Commit("c1", 0, Kind.REBASE, 1, "s", applied, None)
    headers, data = encode_commit(commit)
    await js.publish(Subjects("").commits(KEY), data, {**headers, "traceparent": TRACEPARENT})
    assert [row["decided"] for row in (await waiting.get(f"{PATH}/queue"))["rows"]] == [True, False, False]
    assert (await waiting.get(f"{PATH}/queued?sequence={first}"))["decided"]
    [row] = (await waiting.get(f"{PATH}/commits"))["rows"]
    assert (row["trace"], row["bytes"], row["covers"]) == (TRACE, len(data), None)


async def test_what_was_decided_of_an_earlier_stream_says_nothing_of_this_one(
    waiting: WebConsole, queues: Queues
) -> None:
    """Its sequences began anew, so those of the earlier stream may be higher."""
    headers, data = encode_commit(Commit("c1", 0, Kind.REBASE, 1, "s", Applied("earlier", 10**6), None))
    await queues.js.publish(Subjects("").commits(KEY), data, headers)
    rows = (await waiting.get(f"{PATH}/queue"))["rows"]
    assert [row["decided"] for row in rows] == [False] * 3
    assert not (await waiting.get(f"{PATH}/queued?sequence={rows[0]['sequence']}"))["decided"]


async def test_hidden_values_are_in_no_answer(queues: Queues) -> None:
    async with web_console(queues.url, hide_values=True) as hidden:
        queue: Any = await hidden.ask(f"/api/v1{PATH}/queue")
        assert SECRET not in queue.body.decode()
        for row in queue.json()["rows"]:
            assert row["bytes"] % 1024 == 0, "a size would tell the length of a number"
            request = await hidden.ask(f"/api/v1{PATH}/queued?sequence={row['sequence']}")
            assert (request.status, SECRET in request.body.decode()) == (200, False)
            assert request.json()["payload"]["text"] == ""
