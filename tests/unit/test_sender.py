"""For how long a request is repeated: not longer than servers remember outcomes; and what the caller learns at the
end."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser_client.errors import NotReadyError, QueueFull
from rebaser_client.jetstream import ApiError, NoAnswerError, NoRespondersError
from rebaser_client.jetstream.errors import ACCOUNT_FULL
from rebaser_client.jetstream.infos import PubAck
from rebaser_client.requests.backpressure import Backpressure
from rebaser_client.requests.sender import REPEAT_FOR, OutgoingRequest, RequestSender
from rebaser_core.encoding.envelope import MESSAGE_ID
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive

FULL = ApiError(400, ACCOUNT_FULL, "resource limits exceeded for account")
SUBJECT_FULL = ApiError(503, 10077, "maximum messages per subject exceeded")
NO_ANSWER = NoAnswerError("no answer")
NOBODY = NoRespondersError("nobody")


class Stream:
    """A stream that answers publishes with these answers, and repeats the last one."""

    connection = SimpleNamespace()

    def __init__(self, *answers: PubAck | Exception) -> None:
        self._answers = list(answers)

    async def stream_info(self, _: str) -> None:
        raise NOBODY

    async def publish(self, *_: object, **__: object) -> PubAck:
        answer = self._answers.pop(0) if self._answers[1:] else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def sending(*answers: PubAck | Exception, backpressure: Backpressure | None = None) -> RequestSender:
    js, blobs = cast("Any", Stream(*answers)), cast("Any", None)
    return RequestSender(js, Subjects(""), blobs, DEFAULT_LIMITS, backpressure or Backpressure(lambda: 0.0))


async def store(request: OutgoingRequest, *answers: PubAck | Exception, within: float = 3600.0) -> None:
    """Store the request in a stream with these answers, or give up after `within` seconds."""
    sender = sending(*answers)
    await sender.store(request, asyncio.get_running_loop().time() + within)


def outgoing() -> OutgoingRequest:
    return OutgoingRequest(ChangeSetKey("ws", "cs"), RequestId("id"), "_INBOX.a", {}, b"")


def test_the_time_counts_from_when_a_request_was_last_seen_to_wait() -> None:
    request = outgoing()
    request.note_undecided(10.0)
    request.note_undecided(20.0)
    assert request.repeat_until == 20.0 + REPEAT_FOR


def test_a_copy_that_waits_gives_no_more_time() -> None:
    """The first copy may have been decided long ago, and servers count from then."""
    request = outgoing()
    request.note_undecided(10.0)
    request.mark_as_copy()
    request.note_undecided(200.0)
    assert request.repeat_until == 10.0 + REPEAT_FOR


def test_a_copy_is_another_message_to_the_stream() -> None:
    request = outgoing()
    seen = {request.headers[MESSAGE_ID]}
    for _ in range(2):
        request.mark_as_copy()
        seen.add(request.headers[MESSAGE_ID])
    assert len(seen) == 3
    other = OutgoingRequest(ChangeSetKey("ws", "cs"), RequestId("id"), "_INBOX.b", {}, b"")
    assert other.headers[MESSAGE_ID] in seen
    other.mark_as_copy()
    assert other.headers[MESSAGE_ID] not in seen  # each caller gets an answer


@pytest.mark.anyio
async def test_a_caller_that_waits_gets_a_message_of_its_own_if_the_first_was_stored_by_an_earlier_call() -> None:
    """The server answers to the inbox of the stored message, and an earlier call had another inbox, or none."""
    waits, again = PubAck(5, duplicate=True), PubAck(9, duplicate=False)
    request = outgoing()
    await store(request, waits, again)
    assert (request.is_copy, request.sequence) == (True, 9)
    await store(request, waits)  # the copy is already stored
    assert request.sequence == 5
    nobody = OutgoingRequest(ChangeSetKey("ws", "cs"), RequestId("id"), "", {}, b"")
    await store(nobody, waits)
    assert not nobody.is_copy


@pytest.mark.anyio
async def test_sending_it_again_gives_no_more_time() -> None:
    request = outgoing()
    await store(request, PubAck(1, duplicate=False))
    until = request.repeat_until
    request.mark_as_copy()
    await store(request, PubAck(2, duplicate=False))
    assert (request.sequence, request.repeat_until) == (2, until)


@pytest.mark.anyio
async def test_a_request_is_not_sent_when_its_time_is_over_however_long_somebody_waits_for_it() -> None:
    """Servers may have forgotten the outcome, and would apply the request again."""
    request = outgoing()
    request.repeat_until = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await store(request, PubAck(1, duplicate=False))
    assert request.sequence == 0


@pytest.mark.anyio
@pytest.mark.parametrize(("count", "length", "here"), [(1, 200, True), (1, 8000, False), (1000, 3, False)])
async def test_formulas_that_are_long_together_are_read_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, count: int, length: int, here: bool
) -> None:
    readers: set[threading.Thread] = set()
    monkeypatch.setattr(
        "rebaser_client.requests.sender.check_definitions", lambda *_, **__: readers.add(threading.current_thread())
    )
    sender = RequestSender(
        cast("Any", None), Subjects(""), cast("Any", None), DEFAULT_LIMITS, Backpressure(lambda: 0.0)
    )
    await sender._check_definitions([Derive("a", "cel", {"v": "b"}, {"expr": "v" * length})] * count)
    assert (readers == {threading.current_thread()}) == here
    assert len(readers) == 1


@pytest.mark.anyio
async def test_a_request_that_may_be_stored_is_not_said_to_have_met_a_full_queue() -> None:
    """A caller who learns of a full queue sends the updates again as a new request."""
    with pytest.raises(QueueFull):
        await store(outgoing(), FULL)
    with pytest.raises(TimeoutError):
        await store(outgoing(), NO_ANSWER, FULL, within=0.2)


@pytest.mark.anyio
async def test_a_request_that_may_be_stored_is_not_said_to_have_met_no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebaser_client.requests.sender.NOT_READY_AFTER", -1.0)
    with pytest.raises(NotReadyError):
        await store(outgoing(), NOBODY)
    with pytest.raises(TimeoutError):
        await store(outgoing(), NO_ANSWER, NOBODY, within=0.2)


@pytest.mark.anyio
async def test_a_request_that_is_stored_ends_what_is_known_of_full_queues() -> None:
    now = 0.0
    known = Backpressure(lambda: now)
    deadline = asyncio.get_running_loop().time() + 3600
    for error in (FULL, SUBJECT_FULL):
        now = 0.0
        with pytest.raises(QueueFull):
            await sending(error, backpressure=known).store(outgoing(), deadline)
        await sending(PubAck(1, duplicate=False), backpressure=known).store(outgoing(), deadline)
        now = 20.0
        with pytest.raises(QueueFull) as full:
            await sending(error, backpressure=known).store(outgoing(), deadline)
        assert full.value.retry_after < 1


@pytest.mark.anyio
async def test_the_time_counts_from_the_first_time_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds if nobody waits for the request: after that time, it is not sent again."""
    timeouts: list[float] = []

    async def start(_: str, __: bytes, ___: object, seconds: float) -> None:
        timeouts.append(seconds)

    monkeypatch.setattr(Stream.connection, "start_request", start, raising=False)
    request, now = outgoing(), asyncio.get_running_loop().time()
    monkeypatch.setattr("rebaser_client.requests.sender.PUBLISH_TIMEOUT", 3600.0)
    await sending().start(request, now + 600)
    assert now + REPEAT_FOR <= request.repeat_until <= asyncio.get_running_loop().time() + REPEAT_FOR
    until = request.repeat_until
    await sending().start(request, now - 1)
    assert request.repeat_until == until
    assert 0 < timeouts[0] <= 600
    assert timeouts[1] == 0
