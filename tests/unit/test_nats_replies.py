"""An answer that arrived in time is not lost because the event loop was busy; a missing one ends with a timeout."""

import asyncio
import gc
import socket
import time
import weakref

import anyio
import anyio.lowlevel
import pytest

from rebaser_client.nats.errors import ClientClosedError, NoAnswerError, NotAllowed
from rebaser_client.nats.messages import Msg
from rebaser_client.nats.replies import LATE, Replies
from tests.simulation.loop import SimLoop

pytestmark = pytest.mark.anyio


async def test_an_answer_that_stood_in_the_socket_while_the_loop_was_held_up_counts() -> None:
    loop = asyncio.get_running_loop()
    replies = Replies("_INBOX.x.")
    pending = replies.open_request("s", 0.05)
    inbox, future = pending.inbox, pending.future
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        # As in a connection, a task gets the data that was read in the next round of the loop.
        loop.add_reader(ours, lambda: loop.call_soon(replies.handle, inbox, "", ours.recv(10), None))
        theirs.send(b"answer")
        time.sleep(0.05 + 2 * LATE)  # noqa: ASYNC251 - that is the point
        with anyio.fail_after(60):
            assert (await future).data == b"answer"
        loop.remove_reader(ours)


async def test_a_loop_that_is_always_held_up_gives_up_all_the_same() -> None:
    loop = asyncio.get_running_loop()
    future = Replies("_INBOX.x.").open_request("s", 0.01).future

    def hold_up() -> None:
        time.sleep(1.5 * LATE)
        if not future.done():
            loop.call_soon(hold_up)

    hold_up()
    with anyio.fail_after(60), pytest.raises(NoAnswerError, match=r"within 0\.01 s"):
        await future


async def test_nothing_is_kept_for_an_answer_that_nobody_awaits_any_more() -> None:
    replies = Replies("_INBOX.x.")
    awaited = [replies.open("s"), replies.open(""), *(replies.open_request("s", seconds) for seconds in (60, 60, 30))]
    kept = [weakref.ref(pending.future) for pending in awaited]
    for pending in awaited:
        pending.close()
    del awaited, pending
    gc.collect()
    assert [one() for one in kept] == [None] * 5


async def test_answers_that_nobody_awaits_when_a_connection_ends_are_no_errors() -> None:
    """A task that awaits one of them later still gets the error."""
    loop = asyncio.get_running_loop()
    told: list[object] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        replies = Replies("_INBOX.x.")
        lost = replies.open_request("s", 60).future
        closed, late = replies.open("s").future, replies.open("s").future
        replies.lose()
        replies.close_all()
        with pytest.raises(NoAnswerError):
            await lost
        with pytest.raises(ClientClosedError):
            await late
        del lost, closed, late, replies
        gc.collect()
        await anyio.lowlevel.checkpoint()
    finally:
        loop.set_exception_handler(before)
    assert told == []


def test_each_request_has_its_own_deadline() -> None:
    """Requests with the same timeout share a timer. In virtual time, because on a busy machine, timers are late."""
    loop = SimLoop()
    loop.run_until_complete(deadlines_are_kept())
    loop.close()


async def deadlines_are_kept() -> None:
    replies = Replies("_INBOX.x.")
    began = asyncio.get_running_loop().time()
    opened = [replies.open_request("s", 0.2)]
    await asyncio.sleep(0.1)
    opened += [replies.open_request("s", 0.2), replies.open_request("s", 0.05), replies.open_request("s", 0.2)]
    answered = opened.pop()
    replies.handle(answered.inbox, "", b"answer", None)
    ended: list[tuple[int, float]] = []

    async def expect(number: int, future: asyncio.Future[Msg]) -> None:
        with pytest.raises(NoAnswerError):
            await future
        ended.append((number, round(asyncio.get_running_loop().time() - began, 6)))

    await asyncio.gather(*(expect(number, pending.future) for number, pending in enumerate(opened)))
    assert ended == [(2, 0.15), (0, 0.2), (1, 0.3)]
    assert (await answered.future).data == b"answer"


async def test_a_timeout_that_had_no_requests_for_a_while_is_kept_again() -> None:
    replies = Replies("_INBOX.x.")
    for _ in range(3):
        opened = [replies.open_request("s", 0.01) for _ in range(2)]
        with anyio.fail_after(60):
            for pending in opened:
                with pytest.raises(NoAnswerError):
                    await pending.future
                pending.close()


async def test_a_timer_ends_with_the_requests_that_it_serves() -> None:
    """A timeout with a single request leaves no timer behind, and neither does a closed connection."""
    replies = Replies("_INBOX.x.")
    once, one, two = replies.open_request("s", 30), replies.open_request("s", 60), replies.open_request("s", 60)
    timers = [deadlines.timer for pending in (once, one) if (deadlines := pending.deadlines)]
    for pending in (once, one, two):
        pending.close()
    # The second timer is still needed.
    assert [timer is not None and timer.cancelled() for timer in timers] == [True, False]
    replies.close_all()
    assert all(timer is not None and timer.cancelled() for timer in timers)


async def test_a_denial_ends_the_requests_to_its_subject_and_no_others() -> None:
    replies = Replies("_INBOX.x.")
    denied, other, several = (replies.open(subject) for subject in ("s", "t", ""))
    assert not replies.deny(NotAllowed("publish", ""))  # the server did not name the subject
    assert replies.deny(NotAllowed("publish", "s"))
    assert not replies.deny(NotAllowed("publish", "s"))
    assert [one.future.done() for one in (denied, other, several)] == [True, False, False]
    with pytest.raises(NotAllowed):
        await denied.future
