"""A client without Rebaser's library: bare nats-py, headers and a JSON body."""

import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from rebaser_client import RebaserClient, Set
from tests.support.commands import rebaser_json

pytestmark = pytest.mark.anyio

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FA{}"


@pytest.fixture
async def raw(fleet_url: str, fleet: object) -> AsyncIterator[Client]:
    connection = await nats.connect(fleet_url)
    yield connection
    await connection.close()


async def ask(raw: Client, id_: str, body: bytes, content_type: str = "application/json; charset=utf-8") -> Msg:
    """Store a request as the guide describes, publish the task, and return the answer."""
    inbox = raw.new_inbox()
    replies = await raw.subscribe(inbox)
    headers = {
        "X-CONTENT-TYPE": content_type,
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        "X-MESSAGE-VERSION": "2",
        "X-Reply-Inbox": inbox,
        "Nats-Msg-Id": id_,
    }
    js = raw.jetstream()
    await js.publish("rebaser.requests.others.main", body, headers=headers)
    await raw.publish("rebaser.tasks.others.main.process", b"")
    return await replies.next_msg(timeout=120)


def request(id_: str, *updates: Any) -> bytes:
    body = {"id": id_, "workspaceId": "others", "changeSetId": "main", "updates": updates}
    return json.dumps({"v2": body}).encode()


async def test_headers_and_a_json_body_are_all_that_a_client_needs(raw: Client, client: RebaserClient) -> None:
    id_ = ULID.format("V")
    answer = await ask(
        raw,
        id_,
        request(
            id_,
            {"op": "set", "id": "a", "value": 20},
            {"op": "derive", "id": "b", "function": "sum", "inputs": {"values": ["a", "a"]}, "params": {}},
        ),
    )
    assert answer.headers is not None
    assert answer.headers["X-CONTENT-TYPE"] == "application/json"
    assert answer.headers["X-MESSAGE-TYPE"] == "EnqueueUpdatesResponse"
    assert answer.headers["Nats-Msg-Id"] == id_
    said = json.loads(answer.data)[f"v{answer.headers['X-MESSAGE-VERSION']}"]
    assert (said["id"], said["workspaceId"], said["changeSetId"]) == (id_, "others", "main")
    assert said["status"]["success"]["performed"] == 2
    await client.wait_covered("others", "main", said["status"]["success"]["commit"], timeout=120)
    value = await client.value("others", "main", "b")
    assert value is not None
    assert value.value == 40


async def test_what_cannot_be_read_is_answered_in_json_under_the_id_of_its_header(
    raw: Client, client: RebaserClient
) -> None:
    id_ = ULID.format("W")
    answer = await ask(raw, id_, b"{")
    assert answer.headers is not None
    assert (answer.headers["X-CONTENT-TYPE"], answer.headers["Nats-Msg-Id"]) == ("application/json", id_)
    said = json.loads(answer.data)["v1"]
    assert (said["id"], said["status"]["error"]["code"]) == (id_, "malformed")
    [letter] = [one async for one in client.dead_letters.find("others", "main", request_id=id_)]
    assert letter.code == "malformed"


async def test_our_own_client_writes_json_if_it_is_told_to(fleet_url: str, raw: Client, client: RebaserClient) -> None:
    requests = await raw.subscribe("rebaser.requests.others.own")
    async with RebaserClient.connect(fleet_url, content_type="application/json") as speaker:
        done = await speaker.enqueue_updates_with_reply("others", "own", [Set("a", 1)])
    sent = await requests.next_msg(timeout=120)
    assert sent.headers is not None
    assert sent.headers["X-CONTENT-TYPE"] == "application/json"
    assert json.loads(sent.data)["v2"]["id"] == done.id
    [told] = await rebaser_json(
        "enqueue", "others", "own", "--set", "b=2", "--content-type", "json", nats_url=fleet_url
    )
    sent = await requests.next_msg(timeout=120)
    assert sent.headers is not None
    assert sent.headers["X-CONTENT-TYPE"] == "application/json"
    assert json.loads(sent.data)["v2"]["id"] == told["lastRequestId"]
