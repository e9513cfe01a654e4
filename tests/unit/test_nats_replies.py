"""An answer that came in time is not lost because the loop was busy; one that does not come is not waited for."""

import asyncio
import gc
import socket
import time
import weakref

import anyio
import anyio.lowlevel
import pytest

from rebaser_client.errors import ClientClosedError
from rebaser_client.nats.errors import RequestTimeoutError
from rebaser_client.nats.replies import LATE, Replies

pytestmark = pytest.mark.anyio


async def test_an_answer_that_stood_in_the_socket_while_the_loop_was_held_up_counts() -> None:
    loop = asyncio.get_running_loop()
    replies = Replies("_INBOX.x.")
    inbox, future, _ = replies.open_request("s", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        # As a connection does: what is read is handed to a task, which comes in the next round.
        loop.add_reader(ours, lambda: loop.call_soon(replies.handle, inbox, "", ours.recv(10), None))
        theirs.send(b"answer")
        time.sleep(0.05 + 2 * LATE)  # noqa: ASYNC251 - that is the point
        with anyio.fail_after(30):
            assert (await future).data == b"answer"
        loop.remove_reader(ours)


async def test_a_loop_that_is_always_held_up_gives_up_all_the_same() -> None:
    loop = asyncio.get_running_loop()
    inbox, future, _ = Replies("_INBOX.x.").open_request("s", 0.01)

    def hold_up() -> None:
        time.sleep(1.5 * LATE)
        if not future.done():
            loop.call_soon(hold_up)

    hold_up()
    with anyio.fail_after(30), pytest.raises(RequestTimeoutError, match=r"within 0\.01 s"):
        await future
    assert inbox


async def test_nothing_is_kept_for_an_answer_that_nobody_awaits_any_more() -> None:
    replies = Replies("_INBOX.x.")
    inbox, future, timer = replies.open_request("s", 60)
    timer.cancel()
    awaited = [replies.open("s"), replies.open(""), (inbox, future)]
    kept = [weakref.ref(future) for _, future in awaited]
    for inbox, _ in awaited:
        replies.close(inbox)
    del awaited, future, _
    gc.collect()
    assert [one() for one in kept] == [None, None, None]


async def test_answers_that_nobody_awaits_when_a_connection_ends_are_no_errors() -> None:
    """Whoever awaits one afterwards is told all the same."""
    loop = asyncio.get_running_loop()
    told: list[object] = []
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        replies = Replies("_INBOX.x.")
        _, lost, timer = replies.open_request("s", 60)
        closed, late = replies.open("s")[1], replies.open("s")[1]
        timer.cancel()
        replies.lose()
        replies.close_all()
        with pytest.raises(RequestTimeoutError):
            await lost
        with pytest.raises(ClientClosedError):
            await late
        del lost, closed, late, timer, replies
        gc.collect()
        await anyio.lowlevel.checkpoint()
    finally:
        loop.set_exception_handler(before)
    assert told == []
