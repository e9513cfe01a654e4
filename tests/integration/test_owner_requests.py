"""An owner's requests: they are read in turns, held while they are unreadable, and retried if they break their
owner."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser.change_set import processor
from rebaser.change_set.attempts.poison import PoisonDetector
from rebaser.change_set.loading import open_log
from rebaser.change_set.readers.request_reader import RequestReader
from rebaser.settings import Settings
from rebaser_client import RebaserClient, Set, cooperative
from rebaser_client.jetstream import JetStream, Message
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.blobs.address import address_of
from rebaser_core.commit import Attempt, Kind
from rebaser_core.encoding.envelope import REPLY_INBOX
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, Success, encode, encode_updates_blob
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.owners import Engine, serving

KEY = ChangeSetKey("ws", "cs")

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_the_commit_of_a_large_request_names_the_blob_that_brought_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("rebaser.change_set.log.commit_parts.encode_delta")  # nothing may be encoded again
    many = [Set(f"v{number}", "x" * 100) for number in range(6_000)]
    async with serving(js, subjects, Engine()):
        reply = await client.enqueue_updates_with_reply("ws", "cs", many)
        assert isinstance(reply.status, Success)
    async for commit in client.watch("ws", "cs", after=0):
        assert commit.delta_blob is not None
        assert commit.delta_blob.address == address_of(encode_updates_blob(many))
        assert commit.delta == tuple(many)
        break


async def test_a_request_whose_blob_comes_late_is_applied_then_by_the_server_that_missed_it(
    js: JetStream, subjects: Subjects, client: RebaserClient, events: Events
) -> None:
    """Only a request of a newer version is left to other servers."""
    data = encode_updates_blob([Set("a", 1)])
    request = EnqueueUpdatesRequest(RequestId("late"), "ws", "cs", None, address_of(data))
    headers, payload = encode(request)
    async with serving(js, subjects, Engine(), retry_for=3600) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(events.wait_for, lambda entry: entry["event"] == "request_held")
            await js.publish(subjects.requests(KEY), payload, headers)
            await publish_task(js, subjects, KEY)
        await server._context.blobs.put(data)
        async for commit in client.watch("ws", "cs", after=0):
            if commit.requests:
                break
    assert (await client.values("ws", "cs"))["a"].value == 1


async def test_a_dead_request_in_front_of_one_that_is_held_is_copied_and_answered(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    """The dead request does not wait for the other, which may be held for hours."""
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("new"), "ws", "cs", (Set("a", 2),)))
    inbox = js.connection.new_inbox()
    await js.publish(subjects.requests(KEY), b"no request", headers | {REPLY_INBOX: inbox})
    await js.publish(subjects.requests(KEY), payload, headers | {"X-MESSAGE-VERSION": "99"})
    async with js.connection.subscribe(inbox) as replies, serving(js, subjects, Engine(), retry_for=3600):
        await publish_task(js, subjects, KEY)
        await anext(replies)
    letter = await js.last(subjects.dlq_stream, subjects.dlq(KEY))
    assert letter is not None
    assert letter.data == b"no request"


async def test_a_reply_goes_under_the_reply_prefix_and_never_to_an_inbox_of_the_server(
    js: JetStream, subjects: Subjects, events: Events
) -> None:
    """Otherwise, a client that may send requests could answer calls of a server."""
    own, theirs = js.connection.new_inbox(), f"{subjects.root}-replies"
    async with js.connection.subscribe(own) as faked, js.connection.subscribe(f"{theirs}.*") as replies:
        for number, inbox in enumerate((own, f"{theirs}.1")):
            headers, payload = encode(EnqueueUpdatesRequest(RequestId(f"r{number}"), "ws", "cs", (Set("a", number),)))
            await js.publish(subjects.requests(KEY), payload, headers | {REPLY_INBOX: inbox})
        async with serving(js, subjects, Engine(), reply_prefix=theirs):
            await publish_task(js, subjects, KEY)
            assert (await anext(replies)).subject == f"{theirs}.1"
        with anyio.move_on_after(0):
            pytest.fail(f"a reply to the inbox of the server: {await anext(faked)}")
    assert [event["inbox"] for event in events.named("reply_refused")] == [own]


async def test_others_have_their_turns_while_a_batch_is_read(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a thousand owners would block the loop for as long as all their batches take together."""
    monkeypatch.setattr(cooperative, "TIME_SLICE", 0.0)
    monkeypatch.setattr(processor, "LOOK_AFTER", 0.0)
    real, ticks, seen = RequestReader.read, 0, list[int]()

    async def read(self: RequestReader, message: Message) -> object:
        seen.append(ticks)
        return await real(self, message)

    async def tick() -> None:
        nonlocal ticks
        while True:
            await checkpoint()
            ticks += 1

    monkeypatch.setattr(RequestReader, "read", read)
    for number in range(5):
        await client.enqueue_updates("ws", "cs", [Set("a", number)])
    async with serving(js, subjects, Engine()), anyio.create_task_group() as group:
        group.start_soon(tick)
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 5)])
        group.cancel_scope.cancel()
    assert len(seen) == len(set(seen)) == 6


async def test_what_did_not_fit_into_a_commit_is_decided_next(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other message has to arrive for that."""
    monkeypatch.setattr(PoisonDetector, "batchable_prefix", lambda *_: 1)
    for id_ in ("a", "b", "c"):
        headers, payload = encode(EnqueueUpdatesRequest(RequestId(id_), "ws", "cs", (Set(id_, 1),)))
        await js.publish(subjects.requests(KEY), payload, headers)
    await publish_task(js, subjects, KEY)
    async with serving(js, subjects, Engine()):
        decided: list[str] = []
        async for commit in client.watch("ws", "cs", after=0):
            decided += [one.request_id for one in commit.requests]
            if len(decided) == 3:
                break
    assert decided == ["a", "b", "c"]


@pytest.mark.parametrize(("hung", "deaths"), [(True, 2), (False, 1)])
async def test_an_owner_that_stood_still_counts_as_a_death_of_what_it_tried_and_one_whose_task_is_gone_does_not(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    monkeypatch: pytest.MonkeyPatch,
    hung: bool,
    deaths: int,
) -> None:
    commits = await open_log(context_of(js, subjects, Settings(server_id="test")), KEY)
    async with commits.append_lock():
        await commits.append(commits.draft(Kind.ATTEMPT, attempt=Attempt(1, 0, 1, deaths=1)))
    trying = anyio.Event()

    async def read(*_: object) -> None:
        trying.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(RequestReader, "read", read)
    async with serving(js, subjects, Engine()) as server:
        await client.enqueue_updates("ws", "cs", [Set("a", 1)])
        await trying.wait()
        server._owners[KEY].lose_task(hung=hung)
        assert server._owners[KEY].lease.lost
        while KEY in server._owners:
            await checkpoint()
    assert (await client.state("ws", "cs")).attempts[1].deaths == deaths
