"""`rebaser enqueue --file` with a full queue waits for room, for a limited time."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from rebaser.cli.output import console
from rebaser.cli.sending.sender import EditSender, WaitUntil
from rebaser.cli.sending.source import open_source
from rebaser_client import QueueFull, Set
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream, OrderedConsumer
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import EnqueueUpdatesRequest, decode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")
UPDATES = [Set("a", number) for number in range(4)]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "updates.jsonl"
    path.write_text("".join(json.dumps(update.to_wire()) + "\n" for update in UPDATES))
    return str(path)


@pytest.fixture
async def queue(js: JetStream, subjects: Subjects) -> AsyncIterator[OrderedConsumer]:
    """A queue with room for one request."""
    await ensure_topology(js, subjects, TopologyOptions(max_requests_per_change_set=1))
    async with OrderedConsumer(js, subjects.requests_stream, subjects.requests(KEY)) as consumer:
        yield consumer


async def test_a_file_waits_until_there_is_room(
    nats_url: str,
    js: JetStream,
    subjects: Subjects,
    queue: OrderedConsumer,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused, notes = anyio.Event(), []

    def note(text: str) -> None:
        notes.append(text)
        refused.set()

    monkeypatch.setattr(console, "note", note)
    sender = EditSender(KEY, WaitUntil.NONE, timeout=60, batch=1)
    got = []
    with open_source(file) as source, anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(sender.run, nats_url, subjects.prefix, [], source)
            await refused.wait()
            for _ in UPDATES:
                message = await anext(queue)
                got.append(decode(message.headers, message.data, expect=EnqueueUpdatesRequest).updates)
                await js.delete_message(subjects.requests_stream, message.stream_sequence)
    assert sender.error is None
    assert got == [(update,) for update in UPDATES]
    assert notes == ["the queue of ws.cs is full; waiting for room"]
    assert sender.waited > 0
    assert sender.to_object()["waitedSeconds"] == round(sender.waited, 6)
    assert "for room" in sender.summary()


async def test_who_interrupts_a_file_is_told_what_is_in_and_what_may_be(
    nats_url: str, subjects: Subjects, queue: OrderedConsumer, file: str
) -> None:
    sender = EditSender(KEY, WaitUntil.NONE, timeout=60, batch=1)
    assert sender.interrupted_line() == ""
    with open_source(file) as source, anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(sender.run, nats_url, subjects.prefix, [], source)
            await anext(queue)
            while not sender.waited:  # noqa: ASYNC110 - for room for the second line; it tells nobody
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
    assert sender.interrupted_line() == "interrupted; lines 1 to 1 were sent, lines 2 to 2 may have been sent"


@pytest.mark.usefixtures("queue")
async def test_a_file_does_not_wait_for_ever(nats_url: str, subjects: Subjects, file: str) -> None:
    sender = EditSender(KEY, WaitUntil.NONE, timeout=6, batch=1)  # enough for the first line
    with open_source(file) as source, anyio.fail_after(60):
        await sender.run(nats_url, subjects.prefix, [], source)
    assert isinstance(sender.error, QueueFull)
    assert sender.error_line().endswith("; lines 1 to 1 were sent; nothing after that was sent")
