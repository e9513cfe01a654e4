"""`rebaser dlq` with a running installation: a dead request is redriven and applied once, or dies again."""

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from rebaser_client import RebaserClient, RequestRejected, Set, Success
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import Connection, JetStream
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.blobs.address import address_of
from rebaser_core.encoding.envelope import MESSAGE_ID
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode, encode_updates_blob
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import rebaser, rebaser_json
from tests.support.history import check_history, commits_of

pytestmark = pytest.mark.anyio

BLOB = encode_updates_blob((Set("late", 1),))
SUBJECTS = Subjects("")


@pytest.fixture
async def js(fleet_url: str) -> AsyncIterator[JetStream]:
    async with Connection.connect(fleet_url, name="raw") as connection:
        yield JetStream(connection)


async def send_without_blob(js: JetStream, key: ChangeSetKey, request_id: str) -> None:
    """Send a request whose updates are in a blob that is not stored yet."""
    request = EnqueueUpdatesRequest(RequestId(request_id), key.workspace, key.change_set, None, address_of(BLOB))
    headers, payload = encode(request)
    await js.publish(SUBJECTS.requests(key), payload, headers | {MESSAGE_ID: f"{key}.{request_id}"})
    await publish_task(js, SUBJECTS, key)


async def decided(client: RebaserClient, key: ChangeSetKey, request_id: str, times: int) -> int:
    """Return the log sequence of the n-th decision on `request_id`."""
    with anyio.fail_after(120):
        async for commit in client.watch(key.workspace, key.change_set, after=0):
            times -= [one.request_id for one in commit.requests].count(RequestId(request_id))
            if times == 0:
                return commit.sequence
    raise AssertionError


async def listed(url: str, key: ChangeSetKey, count: int) -> list[dict[str, object]]:
    """Return the output of `dlq list` once it has `count` dead letters: a dead letter is stored after its commit."""
    with anyio.fail_after(120):
        while True:
            found: list[dict[str, object]] = await rebaser_json("dlq", "list", key.workspace, nats_url=url)
            if len(found) == count:
                return found
            await anyio.lowlevel.checkpoint()


async def test_what_died_for_want_of_a_blob_is_redriven_and_applied_once(
    client: RebaserClient, js: JetStream, fleet_url: str
) -> None:
    key = ChangeSetKey("dlq", "blob")
    await send_without_blob(js, key, "r1")
    await decided(client, key, "r1", 1)
    [letter] = await listed(fleet_url, key, 1)
    assert (letter["requestId"], letter["code"], letter["redrive"]) == ("r1", "blob_missing", 0)
    assert letter["attempts"] >= 1  # type: ignore[operator]
    assert letter["server"] in ("one", "two")

    done = await rebaser("dlq", "redrive", "dlq", "blob", "--id", "r1", nats_url=fleet_url)
    assert (done.returncode, done.stdout) == (0, "redriven 1\n")
    await decided(client, key, "r1", 2)
    [letter] = await listed(fleet_url, key, 1)
    assert (letter["requestId"], letter["redrive"]) == ("r1", 1)
    # Only a redrive makes a server try it again. The client that repeats it gets the recorded decision.
    with pytest.raises(RequestRejected):
        await client.enqueue_updates_with_reply("dlq", "blob", [Set("late", 1)], request_id="r1")

    await open_blobs(None, js, SUBJECTS.blobs_bucket).put(BLOB)
    [old] = [one async for one in client.dead_letters.find("dlq", "blob")]
    assert await rebaser_json("dlq", "redrive", "dlq", "--code", "blob_missing", nats_url=fleet_url) == [
        {"redriven": 1, "matched": 1}
    ]
    applied = await decided(client, key, "r1", 3)
    # Redrive the same dead letter again, as after a crash before it was deleted: it is known, and not applied again.
    await js.publish(SUBJECTS.requests(key), *await again(js, old.redrive + 1))
    await client.enqueue_updates_with_reply("dlq", "blob", [Set("late", 2)])
    asked = await client.enqueue_updates_with_reply("dlq", "blob", [Set("late", 1)], request_id="r1")
    assert asked.status == Success(1, applied)
    assert (await client.values("dlq", "blob"))["late"].value == 2
    commits = await commits_of(client, "dlq", "blob")
    assert [one.outcome for commit in commits for one in commit.requests if one.request_id == "r1"] == [
        "dead", "dead", "success",
    ]  # fmt: skip


async def again(js: JetStream, redrive: int) -> tuple[bytes, dict[str, str]]:
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("r1"), "dlq", "blob", None, address_of(BLOB)))
    return payload, headers | {MESSAGE_ID: "copy", "X-Redrive": str(redrive)}


async def test_dead_letters_are_shown_and_dropped_and_many_only_on_purpose(
    client: RebaserClient, js: JetStream, fleet_url: str
) -> None:
    key = ChangeSetKey("dlqmany", "main")
    before = await client.enqueue_updates_with_reply("dlqmany", "main", [Set("a", 1)])
    for number in range(3):
        await js.publish(SUBJECTS.requests(key), b"hello %d" % number, {"X-Hello": "w\u00f6rld"})
    after = await client.enqueue_updates_with_reply("dlqmany", "main", [Set("b", 1)])
    first, *_ = await listed(fleet_url, key, 3)
    shown = await rebaser("dlq", "show", "dlqmany", "--id", str(first["requestId"]), nats_url=fleet_url)
    assert "no header X-CONTENT-TYPE" in shown.stdout
    assert "request: b'hello 0'" in shown.stdout
    [entry] = await rebaser_json("dlq", "show", "dlqmany", "--id", str(first["requestId"]), nats_url=fleet_url)
    assert (entry["code"], entry["payload"]) == ("malformed", b"hello 0".hex())

    refused = await rebaser("dlq", "drop", "dlqmany", nats_url=fleet_url)
    assert refused.returncode == 2
    assert "3 dead letters match; add --yes" in refused.stderr
    other = await rebaser("dlq", "drop", "dlqmany", "--code", "blob_missing", "--yes", nats_url=fleet_url)
    assert (other.returncode, other.stderr) == (1, "rebaser: no dead letter matches; `rebaser dlq list` shows all\n")
    assert len(await listed(fleet_url, key, 3)) == 3
    one = await rebaser("dlq", "drop", "dlqmany", "--id", str(first["requestId"]), nats_url=fleet_url)
    assert (one.returncode, one.stdout) == (0, "dropped 1\n")
    # No server can read them yet: when they are redriven, they die again, with new sequences.
    assert await rebaser_json("dlq", "redrive", "dlqmany", "--yes", nats_url=fleet_url) == [
        {"redriven": 2, "matched": 2}
    ]
    later = await listed(fleet_url, key, 2)
    assert {entry["requestId"] for entry in later}.isdisjoint({first["requestId"]})
    assert [entry["redrive"] for entry in later] == [1, 1]
    assert await rebaser_json("dlq", "drop", "dlqmany", "--yes", nats_url=fleet_url) == [{"dropped": 2, "matched": 2}]
    nothing = await rebaser("dlq", "redrive", "dlqmany", nats_url=fleet_url)
    assert (nothing.returncode, nothing.stderr) == (
        1,
        "rebaser: no dead letter matches; `rebaser dlq list` shows all\n",
    )
    commits = await commits_of(client, "dlqmany", "main")
    check_history(commits)
    good = [one.request_id for commit in commits for one in commit.requests if one.outcome == "success"]
    assert good == [before.id, after.id]
