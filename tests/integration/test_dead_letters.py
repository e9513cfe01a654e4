"""Dead letters are found, redriven and dropped. A redriven request is applied once, whatever was interrupted."""

from dataclasses import replace
from typing import Any

import anyio
import pytest

from rebaser.runtime.dead_letters import MAX_CONCURRENT, DeadLetterPublisher
from rebaser_client import DeadLetter, QueueFull, RebaserClient, Set
from rebaser_client.admin.dead_letters import ATTEMPTS
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream, Message, NoAnswerError
from rebaser_client.jetstream.infos import PubAck
from rebaser_core.commit import Decision, Outcome
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")


class Cemetery:
    """Writes dead letters as a server does."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.js = js
        self.subjects = subjects
        self.letters = DeadLetterPublisher(js, subjects, open_blobs(None, js, subjects.blobs_bucket), "server-1")
        self.count = 0

    async def bury(
        self, request_id: str, key: ChangeSetKey = KEY, code: str = "malformed", payload: bytes | None = None
    ) -> bytes:
        headers, data = encode(
            EnqueueUpdatesRequest(RequestId(request_id), key.workspace, key.change_set, (Set("a", 1),))
        )
        data = data if payload is None else payload
        headers |= {"Nats-Msg-Id": f"{key}.{request_id}", "X-Reply-Inbox": "_INBOX.x", "X-Mine": "kept"}
        self.count += 1
        reply = f"$JS.ACK.S.C.1.{self.count}.{self.count}.1.0"
        message = Message(self.subjects.requests(key), reply, data, headers)
        decision = Decision(self.count, RequestId(request_id), Outcome.DEAD, 0, code, "why", attempts=3)
        await self.letters.publish(key, message, decision, 1234)
        return data


@pytest.fixture
def cemetery(js: JetStream, subjects: Subjects) -> Cemetery:
    return Cemetery(js, subjects)


async def found(client: RebaserClient, *where: str, **which: Any) -> list[DeadLetter]:
    return [letter async for letter in client.dead_letters.find(*where, **which)]


async def test_dead_letters_are_found_by_change_set_reason_and_request(
    client: RebaserClient, cemetery: Cemetery
) -> None:
    other, elsewhere = ChangeSetKey("ws", "other"), ChangeSetKey("else", "cs")
    for request_id, key, code in (
        ("a", KEY, "malformed"), ("b", KEY, "poison"), ("c", other, "poison"), ("d", elsewhere, "poison"),
    ):  # fmt: skip
        await cemetery.bury(request_id, key, code)
    letters = await found(client)
    assert [letter.request_id for letter in letters] == ["a", "b", "c", "d"]
    first = letters[0]
    assert (first.key, first.code, first.reason, first.attempts, first.redrive) == (KEY, "malformed", "why", 3, 0)
    assert (first.server, first.dead_at_ms, first.request_sequence) == ("server-1", 1234, 1)
    assert [letter.request_id for letter in await found(client, "ws")] == ["a", "b", "c"]
    assert [letter.request_id for letter in await found(client, "ws", "cs")] == ["a", "b"]
    assert [letter.request_id for letter in await found(client, "ws", after=letters[0].sequence)] == ["b", "c"]
    assert [letter.request_id for letter in await found(client, code="poison")] == ["b", "c", "d"]
    assert [letter.request_id for letter in await found(client, "ws", request_id="c")] == ["c"]
    assert await client.dead_letters.get(letters[2].sequence) == letters[2]
    assert await client.dead_letters.get(letters[3].sequence + 1) is None
    assert await found(client, "nobody") == []
    with pytest.raises(UnprocessableError):
        await found(client, "ws.*")


async def test_a_redriven_request_is_as_it_was_and_wakes_its_change_set(
    client: RebaserClient, cemetery: Cemetery, js: JetStream, subjects: Subjects
) -> None:
    data = await cemetery.bury("a")
    [letter] = await found(client)
    assert await client.dead_letters.payload(letter) == data
    assert await client.dead_letters.redrive(letter)
    stored = await js.last(subjects.requests_stream, subjects.requests(KEY))
    assert stored is not None
    assert stored.data == data
    assert stored.headers == {
        "X-CONTENT-TYPE": "application/cbor",
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        "X-MESSAGE-VERSION": "2",
        "X-Mine": "kept",
        "X-Redrive": "1",
        "X-Dead-At-Ms": str(letter.dead_at_ms),
        "Nats-Msg-Id": "ws.cs.a#1@1",
    }
    assert await js.last(subjects.tasks_stream, subjects.task(KEY)) is not None
    assert await found(client) == []
    assert not await client.dead_letters.redrive(letter), "it is gone"


async def test_dead_letters_of_one_request_id_are_all_sent_again(
    client: RebaserClient, cemetery: Cemetery, js: JetStream, subjects: Subjects
) -> None:
    payloads = {await cemetery.bury("a", payload=b"%d" % number) for number in range(2)}
    for letter in await found(client):
        assert await client.dead_letters.redrive(letter)
    stored = [await js.get(subjects.requests_stream, sequence) for sequence in (1, 2)]
    assert {one.data for one in stored if one is not None} == payloads


@pytest.mark.parametrize("room", [20_000, 400])
async def test_a_large_payload_comes_back_from_its_blob(
    client: RebaserClient, cemetery: Cemetery, js: JetStream, subjects: Subjects, room: int
) -> None:
    """`room` is the number of bytes that the request had left for its headers; those of the copy may take more."""
    data = await cemetery.bury("a", payload=bytes(js.connection.max_payload - room))
    [letter] = await found(client)
    assert letter.payload_address is not None
    copy = await js.last(subjects.dlq_stream, subjects.dlq(KEY))
    assert copy is not None
    assert copy.data == b""
    assert await client.dead_letters.redrive(letter)
    stored = await js.last(subjects.requests_stream, subjects.requests(KEY))
    assert stored is not None
    assert stored.data == data


async def test_an_interrupted_redrive_leaves_the_dead_letter_and_sends_the_request_once_more(
    client: RebaserClient, cemetery: Cemetery, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redrive was interrupted before the dead letter was deleted. Both copies have the same number, by which the
    log recognizes them."""
    await cemetery.bury("a")
    [letter] = await found(client)

    async def die(_: DeadLetter) -> None:
        raise ConnectionAbortedError

    with monkeypatch.context() as patch:
        patch.setattr(client.dead_letters, "drop", die)
        with pytest.raises(ConnectionAbortedError):
            await client.dead_letters.redrive(letter)
    assert await found(client) == [letter]
    await js.purge(subjects.requests_stream)  # as if it were decided, and beyond the duplicate window
    assert await client.dead_letters.redrive(replace(letter))
    assert await found(client) == []


@pytest.mark.parametrize("lost", [1, ATTEMPTS - 1, ATTEMPTS])
async def test_a_redrive_that_is_not_confirmed_is_sent_again_and_stored_once(
    client: RebaserClient,
    cemetery: Cemetery,
    js: JetStream,
    subjects: Subjects,
    monkeypatch: pytest.MonkeyPatch,
    lost: int,
) -> None:
    await cemetery.bury("a")
    [letter] = await found(client)
    real, tries = JetStream.publish, 0

    async def publish(self: JetStream, subject: str, *args: object, **more: object) -> PubAck:
        nonlocal tries
        ack = await real(self, subject, *args, **more)  # type: ignore[arg-type]
        if subject == subjects.requests(KEY):
            tries += 1
            if tries <= lost:
                raise NoAnswerError("the answer was lost")
        return ack

    monkeypatch.setattr(JetStream, "publish", publish)
    if lost < ATTEMPTS:
        assert await client.dead_letters.redrive(letter)
        assert await found(client) == []
    else:
        with pytest.raises(NoAnswerError):
            await client.dead_letters.redrive(letter)
        assert await found(client) == [letter]
    assert tries == min(lost + 1, ATTEMPTS)
    assert (await js.stream_info(subjects.requests_stream)).messages == 1


async def test_a_full_queue_keeps_the_dead_letter(
    client: RebaserClient, cemetery: Cemetery, js: JetStream, subjects: Subjects
) -> None:
    await ensure_topology(js, subjects, TopologyOptions(max_requests_per_change_set=1))
    await client.enqueue_updates("ws", "cs", [Set("a", 1)])
    await cemetery.bury("a")
    [letter] = await found(client)
    with pytest.raises(QueueFull):
        await client.dead_letters.redrive(letter)
    assert await found(client) == [letter]


async def test_a_dropped_dead_letter_is_gone_and_dropping_it_again_is_no_error(
    client: RebaserClient, cemetery: Cemetery
) -> None:
    for request_id in ("a", "b"):
        await cemetery.bury(request_id)
    letters = await found(client)
    for _ in range(2):
        await client.dead_letters.drop(letters[0])
    assert await found(client) == letters[1:]


async def test_a_flood_of_bad_requests_is_buried_some_at_once(
    cemetery: Cemetery, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, under_way, most = JetStream.publish, 0, 0

    async def publish(self: JetStream, *args: object, **more: object) -> object:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await real(self, *args, **more)  # type: ignore[arg-type]
        finally:
            under_way -= 1

    monkeypatch.setattr(JetStream, "publish", publish)
    async with anyio.create_task_group() as group:
        for number in range(3 * MAX_CONCURRENT):
            group.start_soon(cemetery.bury, f"r{number}")
    assert most == MAX_CONCURRENT
    counts = await js.subject_counts(cemetery.subjects.dlq_stream, ">")
    assert counts == {cemetery.subjects.dlq(KEY): 3 * MAX_CONCURRENT}
