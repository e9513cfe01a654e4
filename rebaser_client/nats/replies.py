"""Matches answers to requests: one wildcard inbox, and a future for each answer that is awaited.

Invariant: every reply subject is either awaited or closed, so nothing is kept for answers that no caller awaits.
"""

import asyncio

from rebaser_client.errors import ClientClosedError, NotAllowed
from rebaser_client.nats.errors import RequestTimeoutError
from rebaser_client.nats.messages import Msg

LATE = 0.1  # a timer that runs more than this many seconds late shows that the loop was blocked
EXTRA_ROUNDS = 3  # after this many rounds, a loop that was blocked has surely read what was in the socket
ROUND_PAUSE = 0.01  # seconds


class Replies:
    """Hands out reply subjects under `inbox`, which ends in a dot. Each is for one answer."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._requests: dict[asyncio.Future[Msg], None] = {}  # oldest first, and failed in that order
        self._subjects: dict[asyncio.Future[Msg], str] = {}
        self._count = 0

    def open(self, subject: str) -> tuple[str, asyncio.Future[Msg]]:
        """Return a reply subject for a request to `subject` (empty: several subjects), and a future for its answer."""
        self._count += 1
        token = str(self._count)
        future = self._waiting[token] = self._loop.create_future()
        if subject:
            self._subjects[future] = subject
        return self.inbox + token, future

    def open_request(self, subject: str, timeout: float) -> tuple[str, asyncio.Future[Msg], asyncio.TimerHandle]:
        """Do as `open`; the future also fails after `timeout` seconds, or when the connection is lost."""
        inbox, future = self.open(subject)
        self._requests[future] = None
        due = self._loop.time() + timeout
        return inbox, future, self._loop.call_at(due, self._expire, future, subject, timeout, due, EXTRA_ROUNDS)

    def close(self, inbox: str) -> None:
        """Forget the reply subject `inbox`; an answer that still arrives is dropped."""
        future = self._waiting.pop(inbox[len(self.inbox) :], None)
        if future is not None:
            self._requests.pop(future, None)
            self._subjects.pop(future, None)
            if not future.cancel() and not future.cancelled():
                future.exception()  # marks it as retrieved, in case no task awaits it

    def close_all(self) -> None:
        """Fail every future, because the connection is closed."""
        for future in self._waiting.values():
            _fail(future, ClientClosedError())

    def lose(self) -> None:
        """Fail the futures of requests: the connection is lost, and with it their answers."""
        for future in self._requests:
            _fail(future, RequestTimeoutError("the connection was lost before an answer arrived"))

    def deny(self, error: NotAllowed) -> bool:
        """Fail the answers to requests that NATS refused to publish. Return whether any was awaited."""
        failed = False
        for future, subject in self._subjects.items():
            if subject == error.subject:
                failed |= _fail(future, error)
        return failed

    def handle(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        """Complete the future of a message on the inbox (a `Handler`)."""
        future = self._waiting.get(subject[len(self.inbox) :])
        if future is not None and not future.done():
            future.set_result(Msg(subject, reply, data, headers))

    def _expire(self, future: asyncio.Future[Msg], subject: str, timeout: float, due: float, rounds: int) -> None:
        if future.done():
            return
        now = self._loop.time()
        if rounds and now - due > LATE:  # the loop was blocked, and the answer may wait in the socket
            again = now + ROUND_PAUSE
            self._loop.call_at(again, self._expire, future, subject, timeout, again, rounds - 1)
        else:
            _fail(future, RequestTimeoutError(f"no answer on {subject} within {timeout:g} s"))


class PendingRequest:
    """A request that was published, and the future of its answer. The caller closes it, answered or not."""

    __slots__ = ("_replies", "_timer", "future", "inbox")

    def __init__(self, replies: Replies, inbox: str, future: asyncio.Future[Msg], timer: asyncio.TimerHandle) -> None:
        self.inbox = inbox
        self.future = future
        self._timer = timer
        self._replies = replies

    def close(self) -> None:
        """Stop waiting for the answer."""
        self._timer.cancel()
        self._replies.close(self.inbox)


def _fail(future: asyncio.Future[Msg], error: Exception) -> bool:
    """Fail `future` and return whether it was still open. asyncio does not report a failure that no task awaits."""
    if future.done():
        return False
    future.set_exception(error)
    future.exception()  # marks it as retrieved; a task that awaits the future still gets the error
    return True
