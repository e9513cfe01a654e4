"""Answers to requests: one wildcard inbox, one future for each answer that is awaited.

Invariant: every subject that was handed out is either awaited or closed, so nothing is kept for answers nobody wants.
"""

import asyncio

from rebaser_client.errors import ClientClosedError, NotAllowed
from rebaser_client.nats.errors import RequestTimeoutError
from rebaser_client.nats.messages import Msg

LATE = 0.1  # seconds behind its time that a timer may come and still be believed
ROUNDS = 3  # more rounds of a slow loop until it has surely read what stood in the socket
PAUSE = 0.01  # seconds


class Replies:
    """Hands out subjects under `inbox`, which ends in a dot, for one answer each."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._requests: dict[asyncio.Future[Msg], None] = {}  # in order: who waited first is told first
        self._subjects: dict[asyncio.Future[Msg], str] = {}
        self._count = 0

    def open(self, subject: str) -> tuple[str, asyncio.Future[Msg]]:
        """An answer to what is published to `subject` (empty: to several)."""
        self._count += 1
        token = str(self._count)
        future = self._waiting[token] = self._loop.create_future()
        if subject:
            self._subjects[future] = subject
        return self.inbox + token, future

    def open_request(self, subject: str, timeout: float) -> tuple[str, asyncio.Future[Msg], asyncio.TimerHandle]:
        """As `open`, but it fails after `timeout` seconds, or when the connection is lost."""
        inbox, future = self.open(subject)
        self._requests[future] = None
        due = self._loop.time() + timeout
        return inbox, future, self._loop.call_at(due, self._expire, future, subject, timeout, due, ROUNDS)

    def close(self, inbox: str) -> None:
        future = self._waiting.pop(inbox[len(self.inbox) :], None)
        if future is not None:
            self._requests.pop(future, None)
            self._subjects.pop(future, None)
            if not future.cancel() and not future.cancelled():
                future.exception()  # seen, even if nobody awaited it

    def close_all(self) -> None:
        """Nothing comes any more; who waits is told."""
        for future in self._waiting.values():
            _fail(future, ClientClosedError())

    def lose(self) -> None:
        """The connection is gone, and with it the answers to requests."""
        for future in self._requests:
            _fail(future, RequestTimeoutError("the connection was lost before an answer came"))

    def deny(self, error: NotAllowed) -> bool:
        """What was published did not reach anybody; whether somebody awaits an answer to it."""
        told = False
        for future, subject in self._subjects.items():
            if subject == error.subject:
                told |= _fail(future, error)
        return told

    def handle(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        future = self._waiting.get(subject[len(self.inbox) :])
        if future is not None and not future.done():
            future.set_result(Msg(subject, reply, data, headers))

    def _expire(self, future: asyncio.Future[Msg], subject: str, timeout: float, due: float, rounds: int) -> None:
        if future.done():
            return
        now = self._loop.time()
        if rounds and now - due > LATE:  # the loop was held up, and the answer may stand in the socket
            self._loop.call_at(now + PAUSE, self._expire, future, subject, timeout, now + PAUSE, rounds - 1)
        else:
            _fail(future, RequestTimeoutError(f"no answer on {subject} within {timeout:g} s"))


def _fail(future: asyncio.Future[Msg], error: Exception) -> bool:
    """Whether `future` was still open. An answer that nobody awaits any more, or not yet, is no error of the loop's."""
    if future.done():
        return False
    future.set_exception(error)
    future.exception()  # seen, as asyncio has it; who awaits it gets it all the same
    return True
