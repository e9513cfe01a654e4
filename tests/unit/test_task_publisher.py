"""Every call is served by a task that is published after it, and waiting calls share a task."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rebaser_client.jetstream import ApiError, Msg
from rebaser_client.nats.errors import NotAllowed, NotConnectedError
from rebaser_client.requests import task_publisher
from rebaser_client.requests.task_publisher import TaskPublisher
from rebaser_core.errors import TransientError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


class Tasks:
    """Publishes that have begun, each of which ends when the test decides."""

    def __init__(self) -> None:
        self.keys: list[ChangeSetKey] = []
        self.may_end = anyio.Semaphore(0)

    @property
    def begun(self) -> int:
        return len(self.keys)

    async def publish(self, _: object, __: object, key: ChangeSetKey) -> bool:
        self.keys.append(key)
        await self.may_end.acquire()
        return True

    async def begin(self, number: int) -> None:
        while self.begun < number:
            await checkpoint()


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    made = Tasks()
    monkeypatch.setattr(task_publisher, "publish_task", made.publish)
    return made


@pytest.fixture
async def publisher(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TaskPublisher]:
    """A publisher to which no answer grows old, however busy the machine is."""
    monkeypatch.setattr(task_publisher, "RECENTLY", 3600.0)
    async with anyio.create_task_group() as group:
        yield TaskPublisher(cast("Any", None), Subjects(""), group)
        group.cancel_scope.cancel()  # otherwise, a test that fails would wait for publishes that may not end


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is due at once, even if the process stalls between a request and its answer, which makes answers slow."""
    monkeypatch.setattr(task_publisher, "PATIENCE", 0.0)
    monkeypatch.setattr(task_publisher, "PATIENCE_MAX", 0.0)


async def test_a_call_while_a_task_is_published_is_served_by_the_next(publisher: TaskPublisher, tasks: Tasks) -> None:
    """The first task may have been refused before the caller's request was stored."""
    first = publisher.start(KEY)
    await tasks.begin(1)
    later = [publisher.start(KEY) for _ in range(3)]
    tasks.may_end.release()
    await first.wait()
    await tasks.begin(2)
    assert not any(one.is_set() for one in later)
    tasks.may_end.release()
    for one in later:
        await one.wait()
    assert tasks.begun == 2


async def test_nobody_waits_for_a_client_that_was_closed(tasks: Tasks) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            publisher = TaskPublisher(cast("Any", None), Subjects(""), group)
            first = publisher.start(KEY)
            await tasks.begin(1)
            second = publisher.start(KEY)
            group.cancel_scope.cancel()
    assert first.is_set()
    assert second.is_set()
    assert tasks.begun == 1


async def test_calls_before_it_begins_share_it(publisher: TaskPublisher, tasks: Tasks) -> None:
    tasks.may_end.release()
    for one in [publisher.start(KEY) for _ in range(3)]:
        await one.wait()
    assert tasks.begun == 1


class Hints:
    """A `JetStream` whose connection records what is sent without an ack. It may be down."""

    def __init__(self, publisher: TaskPublisher) -> None:
        self.connection = self
        self.subjects: list[str] = []
        self.down = False
        publisher._js = cast("Any", self)

    def publish_soon(self, subject: str, *_: object) -> bool:
        if self.down:
            raise NotConnectedError("down")
        self.subjects.append(subject)
        return True


async def test_a_hint_is_sent_once_for_simultaneous_requests_and_not_while_an_owner_answers(
    publisher: TaskPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_publisher, "PATIENCE", 3600.0)
    hints, other = Hints(publisher), ChangeSetKey("ws", "other")
    assert [publisher.hint(key) for key in (KEY, KEY, other)] == [True, True, True]
    assert hints.subjects == [Subjects("").task(KEY), Subjects("").task(other)]
    publisher.record_answer(other, asyncio.get_running_loop().time())
    assert not publisher.hint(other)
    monkeypatch.setattr(task_publisher, "PATIENCE", 0.0)
    monkeypatch.setattr(task_publisher, "MAX_KNOWN", 2)
    assert publisher.hint(KEY)
    assert len(hints.subjects) == 3
    assert len(publisher._hinted_at) == 1


@pytest.mark.usefixtures("impatient")
async def test_a_request_that_is_not_answered_after_a_hint_wakes_an_owner(
    publisher: TaskPublisher, tasks: Tasks
) -> None:
    """The hint may have been lost, or refused because of the task of an owner that ended before the request."""
    Hints(publisher)
    reply = asyncio.get_running_loop().create_future()
    publisher.start_unless_answered(KEY, reply, hinted=publisher.hint(KEY))
    assert tasks.begun == 0
    await tasks.begin(1)


async def test_a_hint_that_could_not_be_sent_is_no_reason_to_wait(publisher: TaskPublisher, tasks: Tasks) -> None:
    hints = Hints(publisher)
    hints.down = True
    reply = asyncio.get_running_loop().create_future()
    hinted = publisher.hint(KEY)
    assert not hinted
    publisher.start_unless_answered(KEY, reply, hinted=hinted)
    await tasks.begin(1)


def failed(reply: asyncio.Future[Msg]) -> None:
    reply.set_exception(TransientError("the connection is closed"))


def cancelled(reply: asyncio.Future[Msg]) -> None:
    reply.cancel()


def still_waits(_: asyncio.Future[Msg]) -> None:
    """Leave the request without an answer."""


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ends", [failed, cancelled, still_waits])
async def test_whoever_is_not_answered_wakes_an_owner(
    publisher: TaskPublisher, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, ends: Callable[[asyncio.Future[Msg]], None]
) -> None:
    """The request may be stored all the same. From then on, the client does not rely on the owner until it answers
    again."""
    reply, next_reply = (asyncio.get_running_loop().create_future() for _ in range(2))
    publisher.record_answer(KEY, asyncio.get_running_loop().time())
    publisher.start_unless_answered(KEY, reply)
    assert tasks.begun == 0
    ends(reply)
    await tasks.begin(1)
    monkeypatch.setattr(task_publisher, "PATIENCE", 3600.0)
    publisher.start_unless_answered(KEY, next_reply)
    tasks.may_end.release()
    await tasks.begin(2)


@pytest.mark.usefixtures("impatient")
async def test_whoever_is_not_answered_later_on_wakes_an_owner_too(publisher: TaskPublisher, tasks: Tasks) -> None:
    for number in (1, 2):
        publisher.record_answer(KEY, asyncio.get_running_loop().time())
        publisher.start_unless_answered(KEY, asyncio.get_running_loop().create_future())
        await tasks.begin(number)
        tasks.may_end.release()


@pytest.mark.usefixtures("impatient")
async def test_whoever_is_answered_wakes_nobody(publisher: TaskPublisher, tasks: Tasks) -> None:
    reply, late = (asyncio.get_running_loop().create_future() for _ in range(2))
    other = ChangeSetKey("ws", "other")
    publisher.record_answer(KEY, asyncio.get_running_loop().time())
    publisher.record_answer(other, asyncio.get_running_loop().time())
    publisher.start_unless_answered(KEY, reply)
    publisher.start_unless_answered(other, late)  # checked after the first
    reply.set_result(Msg("inbox", "", b"", {}))
    await tasks.begin(1)
    assert tasks.keys == [other]


async def test_answers_are_not_kept_until_their_tasks_would_be_due(publisher: TaskPublisher) -> None:
    """Thousands of requests a second would keep hundreds of answers, which the garbage collector would visit."""
    loop = asyncio.get_running_loop()
    for _ in range(3):
        reply: asyncio.Future[Msg] = loop.create_future()
        publisher.record_answer(KEY, loop.time())
        publisher.start_unless_answered(KEY, reply)
        reply.set_result(Msg("inbox", "", b"", {}))
    assert len(publisher._deferred) == 1
    publisher.record_answer(KEY, loop.time())
    assert not publisher._deferred


async def test_slow_answers_are_waited_for_longer_before_an_owner_is_woken(publisher: TaskPublisher) -> None:
    """Otherwise, each request would publish a task, which adds load to servers that are already slow."""
    now = asyncio.get_running_loop().time()
    for _ in range(100):
        publisher.record_answer(KEY, now - 0.1)
    publisher.start_unless_answered(KEY, asyncio.get_running_loop().create_future())
    due, _, reply = publisher._deferred[0]
    assert due >= now + 0.3
    reply.set_result(Msg("inbox", "", b"", {}))


@pytest.mark.usefixtures("impatient")
async def test_all_that_wait_for_an_answer_in_vain_wake_owners_at_once(
    publisher: TaskPublisher, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def look(_: float) -> None:
        nonlocal looks
        looks += 1
        await checkpoint()

    monkeypatch.setattr(anyio, "sleep", look)
    keys = [ChangeSetKey("ws", f"cs{number}") for number in range(5)]
    for key in keys:
        publisher.record_answer(key, asyncio.get_running_loop().time())
        publisher.start_unless_answered(key, asyncio.get_running_loop().create_future())
    await tasks.begin(5)
    assert (tasks.keys, looks) == (keys, 1)


@pytest.mark.parametrize(
    ("error", "give_up", "tries"),
    [
        (NotAllowed("publish", "subject"), 30.0, 1),
        (ApiError(503, 10077, "maximum bytes exceeded"), 30.0, 1),
        (TransientError("away"), -1.0, 1),
        (TransientError("away"), 30.0, 3),
    ],
)
async def test_a_task_that_is_refused_is_left_to_the_sweeper_and_one_that_fails_is_not(
    monkeypatch: pytest.MonkeyPatch, error: Exception, give_up: float, tries: int
) -> None:
    tried = 0

    async def publish(_: object, __: object, ___: ChangeSetKey) -> bool:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise error
        return True

    monkeypatch.setattr(task_publisher, "publish_task", publish)
    monkeypatch.setattr(task_publisher, "GIVE_UP", give_up)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            await TaskPublisher(cast("Any", None), Subjects(""), group).publish(KEY)
    assert tried == tries
