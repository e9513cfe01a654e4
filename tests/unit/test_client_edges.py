"""A client that waits or sends while two events meet: the next commit, a denial, an answer in between."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from rebaser_client.jetstream import Msg, NoAnswerError
from rebaser_client.log.coverage import CoverageWaiter
from rebaser_client.nats.errors import NotAllowed, NotConnectedError
from rebaser_client.requests.backpressure import Backpressure
from rebaser_client.requests.in_flight import InFlight
from rebaser_client.requests.many import ManyRequests, Request, RequestOutcome, _Item
from rebaser_client.requests.outcomes import answer
from rebaser_client.requests.resender import PATIENCE, Resender
from rebaser_client.requests.sender import OutgoingRequest, RequestSender
from rebaser_core.blobs.address import address_of
from rebaser_core.commit import Commit, Kind
from rebaser_core.encoding.envelope import CBOR, JSON, MESSAGE_VERSION, ContentType
from rebaser_core.errors import TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import DEFAULT_LIMITS
from rebaser_core.messages import EnqueueUpdatesResponse, Success, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Set

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


class Log:
    """A log whose commits have consecutive sequences, as if there were no other change sets."""

    def __init__(self, *commits: Commit, then: NotAllowed | None = None) -> None:
        self.commits = list(commits)
        self.used = 0
        self._then = then
        self.read = anyio.Event()

    async def last(self, _: ChangeSetKey) -> Commit | None:
        return self.commits[0]

    async def follow(self, _: ChangeSetKey, after: int) -> AsyncGenerator[Commit, None]:
        for commit in self.commits:
            if commit.sequence > after:
                yield commit
        self.read.set()
        if self._then is not None:
            raise self._then
        await anyio.sleep_forever()

    async def wake_owner(self, _: ChangeSetKey) -> None:
        self.used += 1


def commit(sequence: int, covers: int | None, kind: Kind = Kind.REBASE) -> Commit:
    return Commit("", sequence - 1, kind, 0, "", None, covers, sequence=sequence)


async def test_the_update_may_be_the_very_next_commit_of_all() -> None:
    log = Log(commit(7, 5), commit(8, None, Kind.DVU))
    async with anyio.create_task_group() as group:
        with anyio.fail_after(60):
            await CoverageWaiter(cast("Any", log), group, log.wake_owner).wait(KEY, 7)
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("covers", "used"), [(None, 0), (5, 1)])
async def test_a_branch_is_woken_only_if_what_it_inherited_is_waited_for(covers: int | None, used: int) -> None:
    log = Log(commit(7, covers, Kind.CREATE), commit(8, None, Kind.DVU))
    async with anyio.create_task_group() as group:
        with anyio.fail_after(60):
            await CoverageWaiter(cast("Any", log), group, log.wake_owner).wait(KEY, 7)
        group.cancel_scope.cancel()
    assert log.used == used


async def test_a_branch_is_woken_once_though_its_log_has_to_be_followed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(commit(7, 5, Kind.CREATE))
    follow, ends = log.follow, [TransientError("the connection is gone")]

    async def follow_twice(key: ChangeSetKey, after: int) -> AsyncGenerator[Commit, None]:
        if ends:
            raise ends.pop()
        log.commits.append(commit(8, None, Kind.DVU))
        async for one in follow(key, after):
            yield one

    monkeypatch.setattr(log, "follow", follow_twice)
    async with anyio.create_task_group() as group:
        with anyio.fail_after(60):
            await CoverageWaiter(cast("Any", log), group, log.wake_owner).wait(KEY, 7)
        group.cancel_scope.cancel()
    assert log.used == 1


async def test_who_was_covered_before_the_log_was_denied_is_not_refused() -> None:
    """Both may happen before the waiting task runs again."""
    log = Log(commit(7, 5), commit(8, 7, Kind.DVU), then=NotAllowed("publish", "subject"))
    ended: dict[int, str] = {}

    async def wait(sequence: int) -> None:
        try:
            await covers.wait(KEY, sequence)
            ended[sequence] = "covered"
        except NotAllowed:
            ended[sequence] = "refused"

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            covers = CoverageWaiter(cast("Any", log), group, log.wake_owner)
            async with anyio.create_task_group() as waiters:
                for sequence in (6, 8):
                    waiters.start_soon(wait, sequence)
            group.cancel_scope.cancel()
    assert ended == {6: "covered", 8: "refused"}


class Outgoing:
    """An outgoing request, with the parts that the resender uses."""

    def __init__(self, sequence: int) -> None:
        self.key, self.sequence, self.repeat_until, self.copies = KEY, sequence, 1e18, 0

    def mark_as_copy(self) -> None:
        self.copies += 1

    def note_undecided(self, _: float) -> None:
        pass


async def test_a_request_that_is_answered_while_others_are_sent_again_is_not_sent() -> None:
    sent: list[int] = []
    left: list[Any] = [SimpleNamespace(sequence=10**6)]  # the first request of the queue

    async def send_again(request: Any) -> None:
        sent.append(request.sequence)
        resender.remove(requests[1])  # its answer arrives meanwhile

    async def first(*_: object) -> Any:
        return left[0]

    js = cast("Any", SimpleNamespace(connection=SimpleNamespace(on_reconnect=lambda _: None), next=first))
    async with anyio.create_task_group() as group:
        resender = Resender(js, Subjects(""), group, send_again)
        requests = [cast("Any", Outgoing(sequence)) for sequence in (3, 4, 5)]
        for request in requests:
            resender.add(request)
        queue = resender._queues[KEY]
        left = [SimpleNamespace(sequence=3)]  # all requests are still queued
        for pause in (2 * PATIENCE, 4 * PATIENCE):
            await resender._check_queue(KEY, queue, 1e18)
            assert (sent, queue.pause) == ([], pause)
        left = [None]
        await resender._check_queue(KEY, queue, 1e18)
        assert sent == [3, 5]
        assert [request.copies for request in requests] == [1, 0, 1]
        assert queue.pause == PATIENCE  # answers are being lost, so the next check comes after a short pause
        group.cancel_scope.cancel()


async def test_a_request_whose_outcome_servers_may_have_forgotten_is_given_up_and_not_sent() -> None:
    """A server would apply it a second time."""
    sent: list[int] = []

    async def send_again(request: Any) -> None:
        sent.append(request.sequence)

    async def nothing_queued(*_: object) -> None:
        pass

    js = cast("Any", SimpleNamespace(connection=SimpleNamespace(on_reconnect=lambda _: None), next=nothing_queued))
    async with anyio.create_task_group() as group:
        resender = Resender(js, Subjects(""), group, send_again)
        old, young = (cast("Any", Outgoing(sequence)) for sequence in (3, 4))
        old.repeat_until = asyncio.get_running_loop().time() - 1
        for request in (old, young):
            resender.add(request)
        queue = resender._queues[KEY]
        await resender._check_queue(KEY, queue, 1e18)
        group.cancel_scope.cancel()
    assert sent == [4]
    assert list(queue.stored_at) == [young]


async def test_a_request_that_leaves_from_the_middle_lets_nobody_overtake() -> None:
    """The request before it is still being stored. The next one is sent after that."""
    in_flight = InFlight(10)
    for _ in range(4):
        assert in_flight.enter_now()
    services = cast("Any", SimpleNamespace(in_flight=in_flight))
    call = ManyRequests(services, "stored", 60.0, None)
    front, middle, last = (SimpleNamespace(key=KEY, name=name) for name in ("front", "middle", "last"))
    call._storing[KEY] = deque(cast("Any", [front, middle, last]))
    call._leave_queue(cast("Any", middle))
    assert not call._ready
    # This request could not be encoded, so it never was in the queue.
    call._leave_queue(cast("Any", SimpleNamespace(key=KEY)))
    assert not call._ready
    call._leave_queue(cast("Any", front))
    assert list(call._ready) == [last]
    call._leave_queue(cast("Any", last))
    assert call._storing == {}


async def test_an_answer_that_comes_before_its_confirmation_ends_the_request_with_it() -> None:
    """Nobody answers it a second time."""
    response = EnqueueUpdatesResponse(RequestId("r"), "ws", "cs", Success(1, 7))
    headers, payload = encode(response)
    closed: list[str] = []
    in_flight = InFlight(1)
    assert in_flight.enter_now()
    tasks = SimpleNamespace(record_answer=lambda *_: None)  # no task is needed, because there is an owner
    connection = SimpleNamespace(close_reply=closed.append)
    services = SimpleNamespace(in_flight=in_flight, tasks=tasks, connection=connection, limits=DEFAULT_LIMITS)
    services.resender = SimpleNamespace(remove=lambda _: None)
    outcomes: list[RequestOutcome] = []
    call = ManyRequests(cast("Any", services), "applied", 60.0, outcomes.append)
    item = _Item(call, 0, Request("ws", "cs"), KEY, RequestId("r"))
    reply = asyncio.get_running_loop().create_future()
    item.reply, item.outgoing = ("inbox", reply), cast("Any", Outgoing(5))
    call._open[0] = item
    call._storing[KEY] = deque([item])
    reply.set_result(SimpleNamespace(headers=headers, data=payload))
    call.answered(item)
    assert outcomes == []  # the request is not known to be stored yet
    call.stored(item)
    assert closed == ["inbox"]
    assert [one.response for one in outcomes] == [response]


@pytest.mark.parametrize(
    ("content_type", "headers", "limit", "plain"),
    [(CBOR, {}, 1000, True), (CBOR, {"More": "x"}, 1000, True), (JSON, {}, 1000, False), (CBOR, {}, 10, False)],
)
async def test_an_answer_is_read_in_two_ways(
    monkeypatch: pytest.MonkeyPatch, content_type: ContentType, headers: dict[str, str], limit: int, plain: bool
) -> None:
    """A plain one is not decoded. Of any other, the caller gets what `decode` returns or raises."""
    response = EnqueueUpdatesResponse(RequestId("r"), "ws", "cs", Success(1, 7))
    decoded: list[bytes] = []

    def decode(_: object, payload: bytes, *__: object, **___: object) -> EnqueueUpdatesResponse:
        decoded.append(payload)
        return response

    monkeypatch.setattr("rebaser_client.requests.outcomes.decode", decode)
    made, payload = encode(response, content_type)
    message = Msg("", "", payload, made | headers)
    limits = replace(DEFAULT_LIMITS, max_request_bytes=limit)
    assert answer(message, KEY, RequestId("r"), limits) == response
    assert len(decoded) == (0 if plain else 1)
    answer(message, KEY, RequestId("other"), limits)
    assert len(decoded) == (1 if plain else 2)
    answer(Msg("", "", payload, made | {MESSAGE_VERSION: "2"}), KEY, RequestId("r"), limits)
    assert len(decoded) == (2 if plain else 3)
    with pytest.raises(UnprocessableError, match="no header"):
        answer(Msg("", "", payload, {}), KEY, RequestId("r"), limits)


async def test_a_request_that_may_be_stored_is_not_said_to_be_unsent() -> None:
    """The connection was lost during its first attempt."""
    answers: list[Exception] = [NoAnswerError("no answer"), NotConnectedError("gone")]

    async def publish(*_: object, **__: object) -> None:
        raise answers.pop(0) if answers[1:] else answers[0]

    js = cast("Any", SimpleNamespace(publish=publish))
    sender = RequestSender(js, Subjects(""), cast("Any", None), DEFAULT_LIMITS, Backpressure(lambda: 0.0))
    request = OutgoingRequest(KEY, RequestId("r"), "", {}, b"")
    with pytest.raises(TimeoutError):
        await sender.store(request, asyncio.get_running_loop().time() + 0.3)


@pytest.mark.parametrize(("size", "in_blob"), [(4_000, False), (6_000, True), (9_000, True)])
async def test_updates_that_take_more_than_half_a_message_go_to_a_blob(size: int, in_blob: bool) -> None:
    """The commit has to hold the updates besides its own fields."""
    put: list[bytes] = []

    async def store(data: bytes) -> str:
        put.append(data)
        return address_of(data)

    js = cast("Any", SimpleNamespace(connection=SimpleNamespace(max_payload=10_000)))
    blobs = cast("Any", SimpleNamespace(put=store))
    sender = RequestSender(js, Subjects(""), blobs, DEFAULT_LIMITS, Backpressure(lambda: 0.0))
    deadline = asyncio.get_running_loop().time() + 30
    await sender.prepare(KEY, RequestId("r"), [Set("a", "x" * size)], deadline, from_change_set=None)
    assert bool(put) is in_blob
