"""Hostile and broken messages between valid ones: each is refused with its reason, and the valid ones are applied."""

import json
from collections.abc import AsyncIterator

import cbor2
import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from rebaser_client import Derive, RebaserClient, Set
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from tests.support.history import check_history, commits_of

pytestmark = pytest.mark.anyio

SUBJECT = "rebaser.requests.bad.{}"
GOOD = {"X-CONTENT-TYPE": "application/cbor", "X-MESSAGE-TYPE": "EnqueueUpdatesRequest", "X-MESSAGE-VERSION": "2"}


@pytest.fixture
async def raw(fleet_url: str) -> AsyncIterator[Client]:
    connection = await nats.connect(fleet_url)
    yield connection
    await connection.close()


def deep(levels: int) -> bytes:
    return b"\x81" * levels + b"\x00"


def request(change_set: str, updates: object, **more: object) -> bytes:
    body = {"id": "x1", "workspaceId": "bad", "changeSetId": change_set, "updates": updates, **more}
    return cbor2.dumps({"v2": body})


BAD = {
    "random-bytes": (GOOD, b"\x9f\x00\xff\x13\x37" * 9, "malformed"),
    "no-headers": (None, b"hello", "malformed"),
    "content-type": (GOOD | {"X-CONTENT-TYPE": "text/html"}, b"<p>", "unsupported_content_type"),
    "wrong-type": (GOOD | {"X-MESSAGE-TYPE": "DropTables"}, b"", "unknown_message_type"),
    "other-type": (GOOD | {"X-MESSAGE-TYPE": "Commit", "X-MESSAGE-VERSION": "1"}, b"", "unexpected_message_type"),
    "version-word": (GOOD | {"X-MESSAGE-VERSION": "two"}, b"", "malformed"),
    "huge-exponent": (GOOD, request("huge-exponent", cbor2.CBORTag(4, [10**9, 1])), "malformed"),
    "json-exponent": (
        GOOD | {"X-CONTENT-TYPE": "application/json"},
        (
            b'{"v2":{"id":"x1","workspaceId":"bad","changeSetId":"json-exponent",'
            b'"updates":[{"op":"set","id":"a","value":1e999}]}}'
        ),
        "malformed",
    ),
    "deep-nesting": (GOOD, deep(100_000), "too_deep"),
    "unknown-op": (GOOD, request("unknown-op", [{"op": "eval", "id": "a"}]), "invalid_update"),
    "unknown-parameter": (
        GOOD,
        request("unknown-parameter", [{"op": "derive", "id": "t", "function": "round", "params": {"digit": 1}}]),
        "invalid_definition",
    ),
    "other-change-set": (GOOD, request("elsewhere", []), "wrong_change_set"),
    "blob-address": (GOOD, request("blob-address", None, updatesAddress="../../etc/passwd"), "invalid_address"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_message_gets_a_reply_and_a_dead_letter_and_stops_nobody(
    client: RebaserClient, raw: Client, name: str
) -> None:
    headers, payload, code = BAD[name]
    letters = await raw.jetstream().subscribe(f"rebaser.dlq.bad.{name}", ordered_consumer=True)
    answers = await raw.subscribe(f"_INBOX.{name}")
    await client.enqueue_updates_with_reply("bad", name, [Set("before", 1)])
    if headers is not None:
        headers = headers | {"X-Reply-Inbox": f"_INBOX.{name}"}
    await raw.jetstream().publish(SUBJECT.format(name), payload, headers=headers)
    await client.enqueue_updates_with_reply("bad", name, [Set("after", 1)])
    assert set(await client.values("bad", name)) == {"before", "after"}
    letter = await letters.next_msg(timeout=30)
    assert letter.headers is not None
    assert letter.headers["X-Reason-Code"] == code
    assert letter.headers["X-Reason"]
    assert letter.data == payload
    if headers is not None:
        answer = (await answers.next_msg(timeout=30)).data
        as_json = headers["X-CONTENT-TYPE"] == "application/json"
        said = json.loads(answer) if as_json else cbor2.loads(answer)
        assert said["v1"]["status"]["error"]["code"] == code


async def test_an_invalid_update_is_refused_before_it_is_sent_and_by_the_server_too(
    client: RebaserClient, raw: Client
) -> None:
    answers = await raw.subscribe("_INBOX.invalid")
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r1"), "bad", "invalid", (Set("a" * 600, 1),)))
    await client.enqueue_updates_with_reply("bad", "invalid", [Set("a", 1)])
    await raw.jetstream().publish(
        SUBJECT.format("invalid"), payload, headers=headers | {"X-Reply-Inbox": "_INBOX.invalid"}
    )
    await client.enqueue_updates_with_reply("bad", "invalid", [Set("b", 1)])
    answer = cbor2.loads((await answers.next_msg(timeout=30)).data)
    assert answer["v1"]["status"]["error"]["code"] == "invalid_update"
    assert "longer than 512 characters" in answer["v1"]["status"]["error"]["message"]
    before = (await client.state("bad", "invalid")).last
    with pytest.raises(UnprocessableError, match="longer than 512 characters"):
        await client.enqueue_updates_with_reply("bad", "invalid", [Set("a" * 600, 1)])
    state = await client.state("bad", "invalid")
    assert (state.last, set(state.cells)) == (before, {"a", "b"})


async def test_a_client_sends_no_definition_that_gives_a_function_what_it_does_not_take(client: RebaserClient) -> None:
    await client.enqueue_updates_with_reply("bad", "definition", [Set("a", 2.25)])
    updates = [Set("b", 1), Derive("t", "round", {"v": "a"}, {"digit": 1})]
    for send in (client.enqueue_updates, client.enqueue_updates_with_reply):
        with pytest.raises(UnprocessableError, match=r"^update 1 of 't': round has no parameter 'digit'; did you mean"):
            await send("bad", "definition", updates)  # type: ignore[arg-type]
    updates = [Derive("t", "round", {"v": "a"}, {"digits": 1})]
    await client.enqueue_updates_with_reply("bad", "definition", updates, wait="derived")  # type: ignore[arg-type]
    assert {id_: one.value for id_, one in (await client.values("bad", "definition")).items()} == {"a": 2.25, "t": 2.3}


INBOXES = [
    "rebaser.commits.bad.elsewhere",
    "rebaser.requests.bad.elsewhere",
    "rebaser.tasks.bad.elsewhere.process",
    "rebaser.dlq.bad.elsewhere",
    "$JS.API.STREAM.PURGE.REBASER_COMMITS",
    "$O.REBASER_BLOBS.C.elsewhere",
    "_INBOXES.one",
    "_INBOX.>",
    "_INBOX.a.*",
    "_INBOX",
    "_INBOX..a",
]


async def answered(heard: Subscription) -> set[str]:
    """Return the ids of the requests that were answered, on any subject."""
    found = set()
    while heard.pending_msgs:
        message = await heard.next_msg()
        if (message.headers or {}).get("X-MESSAGE-TYPE") == "EnqueueUpdatesResponse":
            found.add(cbor2.loads(message.data)["v1"]["id"])
    return found


@pytest.mark.parametrize("inbox", INBOXES)
async def test_a_reply_goes_to_an_inbox_and_nowhere_else(client: RebaserClient, raw: Client, inbox: str) -> None:
    """A request may name any subject as its inbox, such as that of a stream, of the API, or a wildcard. It is applied,
    but not answered."""
    change_set = f"inbox-{INBOXES.index(inbox)}"
    first = await client.enqueue_updates_with_reply("bad", change_set, [Set("before", 1)])
    heard = await raw.subscribe(">")
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("forced"), "bad", change_set, (Set("by-force", inbox),)))
    await raw.jetstream().publish(SUBJECT.format(change_set), payload, headers=headers | {"X-Reply-Inbox": inbox})
    last = await client.enqueue_updates_with_reply("bad", change_set, [Set("after", 1)])
    assert (await client.values("bad", change_set))["by-force"].value == inbox
    await raw.flush()  # everything that the server published before its last answer has arrived
    ids = await answered(heard)
    assert last.id in ids
    assert "forced" not in ids
    check_history(await commits_of(client, "bad", change_set), [first.id, "forced", last.id])


async def test_a_reply_goes_to_an_inbox(client: RebaserClient, raw: Client) -> None:
    """The counterpart of the test above: the same request, with a valid inbox."""
    await client.enqueue_updates_with_reply("bad", "inbox", [Set("before", 1)])
    heard = await raw.subscribe(">")
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("forced"), "bad", "inbox", (Set("by-force", 1),)))
    await raw.jetstream().publish(SUBJECT.format("inbox"), payload, headers=headers | {"X-Reply-Inbox": "_INBOX.a.b"})
    await client.enqueue_updates_with_reply("bad", "inbox", [Set("after", 1)])
    await raw.flush()
    assert "forced" in await answered(heard)


async def test_a_newer_version_waits_for_a_newer_server_and_is_then_dead(client: RebaserClient, raw: Client) -> None:
    """`retry_for` bounds the wait. Later requests wait as well, to keep the order, and are then applied."""
    letters = await raw.jetstream().subscribe("rebaser.dlq.bad.newer", ordered_consumer=True)
    await client.enqueue_updates_with_reply("bad", "newer", [Set("before", 1)])
    answers = await raw.subscribe("_INBOX.newer")
    newer = GOOD | {"X-MESSAGE-VERSION": "99", "X-Reply-Inbox": "_INBOX.newer"}
    await raw.jetstream().publish(SUBJECT.format("newer"), b"from the future", headers=newer)
    await client.enqueue_updates_with_reply("bad", "newer", [Set("after", 1)], timeout=60)
    letter = await letters.next_msg(timeout=30)
    assert letter.headers is not None
    assert letter.headers["X-Reason-Code"] == "unsupported_version"
    assert "given up after" in letter.headers["X-Reason"]
    assert letter.data == b"from the future"
    answer = cbor2.loads((await answers.next_msg(timeout=30)).data)
    assert answer["v1"]["status"]["error"]["code"] == "unsupported_version"
    assert set(await client.values("bad", "newer")) == {"before", "after"}
