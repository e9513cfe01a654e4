"""Matches answers to requests, through one wildcard inbox and a future for each awaited answer.

Invariant: a reply subject is forgotten when its answer arrives or is no longer awaited, so no memory is used for
answers that no caller awaits.
"""

import asyncio

from rebaser_client.nats.errors import ClientClosedError, NoAnswerError, NotAllowed
from rebaser_client.nats.messages import Msg

LATE = 0.1  # seconds; if a timer fires more than this after its due time, the event loop was blocked
EXTRA_ROUNDS = 3  # after this many iterations, an event loop that was blocked has certainly read the socket
ROUND_PAUSE = 0.01  # seconds between these iterations


class PendingRequest:
    """A reply subject, `inbox`, and the `future` of its answer. Call `close` unless the answer came."""

    __slots__ = ("_replies", "deadlines", "future", "inbox", "lasting", "subject")

    def __init__(self, replies: "Replies", inbox: str, subject: str, future: asyncio.Future[Msg]) -> None:
        self.inbox = inbox
        self.subject = subject  # the subject of the request; empty if the caller sends it on several subjects
        self.future = future
        self.lasting = False  # whether the caller still waits for the answer after the connection was lost
        self.deadlines: _Deadlines | None = None  # None if there is no timeout
        self._replies = replies

    def close(self) -> None:
        """Stop waiting for the answer."""
        self._replies.close(self.inbox)


class _Deadlines:
    """The pending requests that have the same timeout, ordered by deadline, and the timer that all of them share.

    Setting a separate timer for each request would take a tenth of the time of a request.
    """

    __slots__ = ("due", "shared", "timeout", "timer")

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.due: dict[PendingRequest, float] = {}
        self.shared = False  # whether a second request had this timeout, which makes further requests likely
        self.timer: asyncio.TimerHandle | None = None


class Replies:
    """Creates reply subjects that begin with `inbox`, which ends in a dot. Each reply subject receives one answer."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, PendingRequest] = {}  # by reply subject, oldest first
        self._deadlines: dict[float, _Deadlines] = {}  # by timeout
        self._count = 0

    def open(self, subject: str, timeout: float | None = None) -> PendingRequest:
        """Return a reply subject for a request to `subject`, and the future of its answer, as a `PendingRequest`.

        The future fails after `timeout` seconds. `subject` is empty if the caller sends the request on several
        subjects.
        """
        pending = self.open_request(subject, timeout)
        pending.lasting = True
        return pending

    def open_request(self, subject: str, timeout: float | None) -> PendingRequest:
        """Return a pending request like `open`, but let its future also fail when the connection is lost."""
        self._count = count = self._count + 1
        inbox = f"{self.inbox}{count}"
        pending = PendingRequest(self, inbox, subject, self._loop.create_future())
        self._waiting[inbox] = pending
        if timeout is not None:
            deadlines = self._deadlines.get(timeout)
            if deadlines is None:
                deadlines = self._deadlines[timeout] = _Deadlines(timeout)
            else:
                deadlines.shared = True
            pending.deadlines = deadlines
            due = deadlines.due[pending] = self._loop.time() + timeout
            if deadlines.timer is None:
                self._set_timer(deadlines, due, EXTRA_ROUNDS)
        return pending

    def close(self, inbox: str) -> None:
        """Forget the reply subject `inbox`. An answer that arrives later is dropped."""
        future = self._take(inbox)
        if future is not None:
            future.cancel()

    def close_all(self) -> None:
        """Fail every future, because the connection is closed."""
        for pending in self._waiting.values():
            _fail(pending.future, ClientClosedError())
        for deadlines in list(self._deadlines.values()):
            self._forget(deadlines)

    def lose(self) -> None:
        """Fail the futures of requests, because the lost connection also lost their answers."""
        for pending in self._waiting.values():
            if not pending.lasting:
                text = "the connection was lost before an answer arrived; the message may have taken effect"
                _fail(pending.future, NoAnswerError(text))

    def deny(self, error: NotAllowed) -> bool:
        """Fail the futures of the requests that NATS refused to publish. Return whether any of them was pending."""
        failed = False
        for pending in self._waiting.values():
            if pending.subject and pending.subject == error.subject:
                failed |= _fail(pending.future, error)
        return failed

    def handle(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        """Pass a message on the inbox to the future that waits for it. This method is a `Handler`."""
        future = self._take(subject)
        if future is not None and not future.done():
            future.set_result(Msg(subject, reply, data, headers))

    def _take(self, inbox: str) -> asyncio.Future[Msg] | None:
        """Forget the reply subject `inbox`, and return its future; None if it was forgotten before."""
        pending = self._waiting.pop(inbox, None)
        if pending is None:
            return None
        deadlines = pending.deadlines
        if deadlines is not None:
            due = deadlines.due
            due.pop(pending, None)
            if not due and not deadlines.shared:
                self._forget(deadlines)
        return pending.future

    def _set_timer(self, deadlines: _Deadlines, at: float, rounds: int) -> None:
        deadlines.timer = self._loop.call_at(at, self._expire, deadlines, at, rounds)

    def _forget(self, deadlines: _Deadlines) -> None:
        if deadlines.timer is not None:
            deadlines.timer.cancel()
            deadlines.timer = None
        self._deadlines.pop(deadlines.timeout, None)

    def _expire(self, deadlines: _Deadlines, at: float, rounds: int) -> None:
        """Fail the requests whose deadline has passed, and set the timer for the next deadline."""
        now = self._loop.time()
        if rounds and now - at > LATE:  # the event loop was blocked, so answers may be unread in the socket
            self._set_timer(deadlines, now + ROUND_PAUSE, rounds - 1)
            return
        due = deadlines.due
        while due:
            pending = next(iter(due))
            if due[pending] > now:
                self._set_timer(deadlines, due[pending], EXTRA_ROUNDS)
                return
            del due[pending]
            text = f"no answer on {pending.subject} within {deadlines.timeout:g} s"
            _fail(pending.future, NoAnswerError(text))
        self._forget(deadlines)


def _fail(future: asyncio.Future[Msg], error: Exception) -> bool:
    """Fail `future`, and return whether it was pending. asyncio does not log the failure if no task awaits it."""
    if future.done():
        return False
    future.set_exception(error)
    future.exception()  # keeps asyncio from logging the error; a task that awaits the future still gets it
    return True
