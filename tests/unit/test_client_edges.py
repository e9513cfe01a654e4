"""A client that waits or sends where two things meet: the next commit of all, a denial, an answer in between."""

from collections import deque
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from rebaser_client.errors import NotAllowed
from rebaser_client.log.coverage import CoverageWaiter
from rebaser_client.requests.in_flight import InFlight
from rebaser_client.requests.many import ManyRequests, RequestServices
from rebaser_client.requests.resender import PATIENCE, Resender
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.streams.subjects import Subjects

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


class Log:
    """A log whose commits have consecutive sequences, as if no other change set had any."""

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

    async def use(self, _: ChangeSetKey) -> None:
        self.used += 1


def commit(sequence: int, covers: int | None, kind: Kind = Kind.REBASE) -> Commit:
    return Commit("", sequence - 1, kind, 0, "", None, covers, sequence=sequence)


async def test_the_update_may_be_the_very_next_commit_of_all() -> None:
    log = Log(commit(7, 5), commit(8, None, Kind.DVU))
    async with anyio.create_task_group() as group:
        with anyio.fail_after(30):
            await CoverageWaiter(cast("Any", log), group, log.use).wait(KEY, 7)
        group.cancel_scope.cancel()


async def test_who_was_covered_before_the_log_was_denied_is_not_refused() -> None:
    """Both may be known before the waiting task runs again."""
    log = Log(commit(7, 5), commit(8, 7, Kind.DVU), then=NotAllowed("publish", "subject"))
    ended: dict[int, str] = {}

    async def wait(sequence: int) -> None:
        try:
            await covers.wait(KEY, sequence)
            ended[sequence] = "covered"
        except NotAllowed:
            ended[sequence] = "refused"

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            covers = CoverageWaiter(cast("Any", log), group, log.use)
            async with anyio.create_task_group() as waiters:
                for sequence in (6, 8):
                    waiters.start_soon(wait, sequence)
            group.cancel_scope.cancel()
    assert ended == {6: "covered", 8: "refused"}


class Request:
    """An outgoing request, as far as the resender asks."""

    def __init__(self, sequence: int) -> None:
        self.key, self.sequence, self.repeat_until, self.copies = KEY, sequence, 1e18, 0

    def mark_as_copy(self) -> None:
        self.copies += 1

    def note_undecided(self, _: float) -> None:
        pass


async def test_a_request_that_is_answered_while_others_are_sent_again_is_not_sent() -> None:
    sent: list[int] = []
    left: list[Any] = [SimpleNamespace(sequence=10**6)]  # what heads the queue

    async def send_again(request: Any) -> None:
        sent.append(request.sequence)
        resender.remove(requests[1])  # its answer comes meanwhile

    async def first(*_: object) -> Any:
        return left[0]

    js = cast("Any", SimpleNamespace(connection=SimpleNamespace(on_reconnect=lambda _: None), next=first))
    async with anyio.create_task_group() as group:
        resender = Resender(js, Subjects(""), group, send_again)
        requests = [cast("Any", Request(sequence)) for sequence in (3, 4, 5)]
        for request in requests:
            resender.add(request)
        queue = resender._queues[KEY]
        left = [SimpleNamespace(sequence=3)]  # all are still queued
        for pause in (2 * PATIENCE, 4 * PATIENCE):
            await resender._check_queue(KEY, queue, 1e18)
            assert (sent, queue.pause) == ([], pause)
        left = [None]
        await resender._check_queue(KEY, queue, 1e18)
        assert sent == [3, 5]
        assert [request.copies for request in requests] == [1, 0, 1]
        assert queue.pause == PATIENCE  # answers are lost now: the next one may be soon
        group.cancel_scope.cancel()


async def test_a_request_that_leaves_from_the_middle_lets_nobody_overtake() -> None:
    """The one in front is still being stored; the next one begins when that is done."""
    in_flight = InFlight(10)
    for _ in range(4):
        assert in_flight.enter_now()
    services = RequestServices(*cast("Any", [None] * 4), in_flight, *cast("Any", [None, lambda _: RequestId("r")]))
    call = ManyRequests(services, "stored", 60.0, None)
    front, middle, last = (SimpleNamespace(key=KEY, name=name) for name in ("front", "middle", "last"))
    call._storing[KEY] = deque(cast("Any", [front, middle, last]))
    call._leave_queue(cast("Any", middle))
    assert not call._ready
    call._leave_queue(cast("Any", SimpleNamespace(key=KEY)))  # it could not be encoded, and was never in the queue
    assert not call._ready
    call._leave_queue(cast("Any", front))
    assert list(call._ready) == [last]
    call._leave_queue(cast("Any", last))
    assert call._storing == {}
