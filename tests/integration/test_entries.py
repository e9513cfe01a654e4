"""The reads of `rebaser tail`: every start, one change set or many, messages that are deleted during the read."""

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import anyio
import pytest

from rebaser_client import Newest, NotReadyError, RebaserClient
from rebaser_client.jetstream import JetStream
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set
from tests.conftest import Events

pytestmark = [pytest.mark.anyio]


async def publish(js: JetStream, subjects: Subjects, change_set: str, number: int) -> int:
    request = EnqueueUpdatesRequest(RequestId(f"R{number}"), "ws", change_set, (Set("a", number),))
    headers, payload = encode(request)
    return (await js.publish(subjects.requests(ChangeSetKey("ws", change_set)), payload, headers)).sequence


@pytest.fixture
async def filled(topology: object, js: JetStream, subjects: Subjects) -> None:
    """Fill sequences 1 to 40. Those divisible by 4 belong to `rare`, the others to `often`. 2 and 36 are deleted."""
    for number in range(1, 41):
        assert await publish(js, subjects, "often" if number % 4 else "rare", number) == number
    for sequence in (2, 36):
        await js.delete_message(subjects.requests_stream, sequence)


async def read(client: RebaserClient, *names: str, **how: Any) -> list[int]:
    with anyio.fail_after(60):
        return [entry.sequence async for entry in client.entries("requests", *names, **how)]


ALL = [number for number in range(1, 41) if number not in (2, 36)]
RARE = [number for number in ALL if number % 4 == 0]


@pytest.mark.usefixtures("filled")
async def test_every_start_ends_with_what_was_there(client: RebaserClient, js: JetStream, subjects: Subjects) -> None:
    assert await read(client) == ALL
    assert await read(client, "ws", "rare") == RARE
    assert await read(client, "ws", "rare", start=29) == [32, 40]
    assert await read(client, "ws", start=99) == []
    assert await read(client, start="new") == []
    assert await read(client, "elsewhere") == []
    for count in (1, 2, 5, 9, 30):
        assert await read(client, "ws", "rare", start=Newest(count)) == RARE[-count:]
        assert await read(client, start=Newest(count)) == ALL[-count:]
    consumers = await js.call(f"CONSUMER.NAMES.{subjects.requests_stream}")
    assert consumers["consumers"] is None or consumers["consumers"] == []


@pytest.mark.usefixtures("filled")
async def test_a_time_is_a_place_to_begin_at(client: RebaserClient) -> None:
    [newest] = [entry async for entry in client.entries("requests", start=40)]
    # The server has nanoseconds, and Python microseconds: the truncated time is not later.
    at = datetime.fromtimestamp(newest.time_ns // 10**9, UTC) + timedelta(microseconds=newest.time_ns % 10**9 // 1000)
    assert (await read(client, start=at))[-1] == 40
    assert await read(client, start=datetime(2020, 1, 1, tzinfo=UTC)) == ALL
    assert await read(client, start=datetime(2120, 1, 1, tzinfo=UTC)) == []


@pytest.mark.usefixtures("filled")
async def test_a_follower_goes_on_behind_where_it_began(
    client: RebaserClient, js: JetStream, subjects: Subjects
) -> None:
    with anyio.fail_after(60):
        async with aclosing(client.entries("requests", "ws", "rare", start=Newest(2), follow=True)) as entries:
            assert [(await anext(entries)).sequence for _ in range(2)] == [32, 40]
            await publish(js, subjects, "often", 41)
            await publish(js, subjects, "rare", 42)
            entry = await anext(entries)
    assert entry.sequence == 42
    assert isinstance(entry.content, EnqueueUpdatesRequest)
    assert entry.content.id == "R42"


@pytest.mark.usefixtures("filled")
async def test_requests_that_are_decided_while_it_reads_do_not_keep_it_waiting(
    client: RebaserClient, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests disappear after the reader has counted them, and before the first one arrives."""
    call = JetStream.call

    async def purging(self: JetStream, subject: str, *arguments: Any, **options: Any) -> Any:
        if subject.startswith("CONSUMER.CREATE."):
            await call(js, f"STREAM.PURGE.{subjects.requests_stream}", {})
        return await call(self, subject, *arguments, **options)

    monkeypatch.setattr(JetStream, "call", purging)
    assert await read(client) == []


@pytest.mark.usefixtures("topology")
async def test_what_cannot_be_read_is_an_entry_too(client: RebaserClient, js: JetStream, subjects: Subjects) -> None:
    key = ChangeSetKey("ws", "cs")
    await js.publish(subjects.requests(key), b"\xff")
    await js.publish(subjects.commits(key), b"\xff")
    await js.publish(subjects.dlq(key), b"\xff", {"X-Reason": "why"})
    for kind in ("requests", "commits", "dlq"):
        [entry] = [entry async for entry in client.entries(kind)]
        assert (entry.key, entry.size, entry.content) == (key, 1, None)
        assert (entry.problem is None) == (kind == "dlq")


async def test_names_are_checked_and_missing_streams_told(client: RebaserClient) -> None:
    with pytest.raises(UnprocessableError):
        await read(client, "a.b")
    with pytest.raises(NotReadyError):
        await read(client)


@pytest.mark.usefixtures("topology")
async def test_a_replay_takes_as_long_as_it_took(
    client: RebaserClient, js: JetStream, subjects: Subjects, events: Events
) -> None:
    """This includes a pause in which the server is silent for longer than a lost consumer would be."""
    for number, pause in ((1, 0.3), (2, 1.5), (3, 0.0)):
        await publish(js, subjects, "cs", number)
        await anyio.sleep(pause)  # these pauses are replayed

    began = monotonic()
    with anyio.fail_after(60):
        came = [(monotonic() - began, one.time_ns / 1e9) async for one in client.entries("requests", replay="original")]
    assert len(came) == 3
    # From the call on: on a busy machine, a message that is read late makes the pause behind it look shorter.
    for after, stored in came:
        assert after > stored - came[0][1] - 0.2, "it came sooner than it was stored"
    assert not events.named("ordered_reset")
