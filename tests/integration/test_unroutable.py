"""Messages whose subject names no change set go to the dead letters, whatever fails meanwhile."""

import anyio
import pytest

from rebaser.sweeper.sweeper import Sweeper
from rebaser.sweeper.unroutable import UNROUTABLE_KEY
from rebaser_client.admin.provisioning import ensure_topology
from rebaser_client.jetstream import JetStream, NoAnswerError
from rebaser_client.jetstream.infos import PubAck
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions
from tests.fuzz.wire import RawPublisher
from tests.support.sweeps import tasks

A, B, C = (ChangeSetKey("ws", name) for name in "abc")

pytestmark = pytest.mark.anyio


async def test_what_names_no_change_set_is_moved_to_the_dead_letters(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, nats_url: str
) -> None:
    """NATS accepts any bytes as a token. Messages with a readable subject stay, whatever pattern they match."""
    await js.publish(subjects.requests(A), b"stays")
    strange = [b"ws.*", b"ws.>", b"*.>", b"\xff.a", b"ws." + b"x" * 65, "ws.é".encode(), b"$JS.a"]
    root = f"{subjects.root}.requests.".encode()
    async with RawPublisher.connect(nats_url) as raw:
        for token in strange:
            inbox, stored = js.connection.open_reply()
            await raw.publish(root + token, b"body of " + token, {"X-Mine": "kept", "Nats-Expected-Stream": ""}, inbox)
            with anyio.fail_after(60):
                assert b'"seq"' in (await stored).data
    await js.publish(subjects.requests(B), b"stays")
    assert await sweeper.sweep() == 2
    assert await tasks(js, subjects) == {A, B}
    assert await js.subject_counts(subjects.requests_stream, ">") == {subjects.requests(A): 1, subjects.requests(B): 1}
    assert await js.subject_counts(subjects.dlq_stream, ">") == {subjects.dlq(UNROUTABLE_KEY): len(strange)}
    first = (await js.stream_info(subjects.dlq_stream)).first_sequence
    letters = [
        await js.get(subjects.dlq_stream, first + at) for at in range(len(strange))
    ]  # moved concurrently, so in any order
    found = {letter.data: letter.headers for letter in letters if letter is not None}
    assert set(found) == {b"body of " + token for token in strange}
    assert all(headers["X-Reason-Code"] == "invalid_id" for headers in found.values())
    assert found[b"body of $JS.a"]["X-Original-Subject"] == f"{root.decode()}$JS.a"
    assert all(headers["X-Mine"] == "kept" for headers in found.values())
    assert await sweeper.sweep() == 0


async def test_strays_that_come_later_are_found_too(sweeper: Sweeper, js: JetStream, subjects: Subjects) -> None:
    for number in (1, 2):
        for _ in range(number):
            await js.publish(f"{subjects.root}.requests.ws.$", b"")
        await sweeper.sweep()
        assert not await js.subject_counts(subjects.requests_stream, ">")
    assert await js.subject_counts(subjects.dlq_stream, ">") == {subjects.dlq(UNROUTABLE_KEY): 3}


async def test_strays_are_found_in_a_stream_that_was_made_again(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, topology: TopologyOptions
) -> None:
    """The messages are before the position up to which the sweeper had read the deleted stream."""
    stray = f"{subjects.root}.requests.ws.$"
    for _ in range(2):
        await js.publish(stray, b"")
    await sweeper.sweep()
    await js.call(f"STREAM.DELETE.{subjects.requests_stream}")
    await ensure_topology(js, subjects, topology)
    for subject in (stray, subjects.requests(A), subjects.requests(A)):
        await js.publish(subject, b"")
    await sweeper.sweep()
    assert await js.subject_counts(subjects.requests_stream, ">") == {subjects.requests(A): 2}


async def test_what_fails_while_many_are_at_work_is_tried_again_in_the_next_sweep(
    sweeper: Sweeper, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing sweep raises one error: anything else would end the server."""
    for key in (A, B, C):
        await js.publish(subjects.requests(key), b"")
    for _ in range(3):
        await js.publish(f"{subjects.root}.requests.ws.$", b"")
    real, failing = JetStream.publish, ["dlq", "dlq", "tasks"]

    async def publish(self: JetStream, subject: str, *args: object, **more: object) -> PubAck:
        if failing and subject.startswith(f"{subjects.root}.{failing[-1]}."):
            failing.pop()
            raise NoAnswerError("no answer")
        return await real(self, subject, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(JetStream, "publish", publish)
    for left in (2, 1, 0):  # an error leaves the rest to the next sweep
        with pytest.raises(NoAnswerError):
            await sweeper.sweep()
        assert len(failing) <= left
        if not failing:
            break
    await sweeper.sweep()
    assert await tasks(js, subjects) == {A, B, C}
    assert await js.subject_counts(subjects.dlq_stream, ">") == {subjects.dlq(UNROUTABLE_KEY): 3}
    assert sum((await js.subject_counts(subjects.requests_stream, ">")).values()) == 3
