"""Sends many requests in one task: `RebaserClient.enqueue_many`.

Whatever happens to a request (NATS confirms it, a server answers it, its timeout expires) is an event, and one loop
handles the events of all requests. A request gets its own task only if the first attempt to store it fails; in that
task, `RequestSender.store` retries.

Invariant: for each change set, one request at a time is being stored. The next request is published once the previous
request was stored or has finally failed. Requests are therefore stored in the order of the call, even if messages are
lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import anyio
from anyio.abc import TaskGroup

from rebaser_client.cooperative import cooperate
from rebaser_client.errors import RequestTimeout
from rebaser_client.jetstream import Connection, Msg
from rebaser_client.jetstream.context import pub_ack
from rebaser_client.nats.replies import PendingRequest
from rebaser_client.requests.in_flight import InFlight
from rebaser_client.requests.outcomes import answer, known_key, not_sent, rejection
from rebaser_client.requests.resender import Resender
from rebaser_client.requests.sender import OutgoingRequest, RequestSender
from rebaser_client.requests.task_publisher import TaskPublisher
from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import Limits
from rebaser_core.messages import EnqueueUpdatesResponse, Success
from rebaser_core.updates import Recompute, Update

if TYPE_CHECKING:
    from rebaser_client.requests.spans import ClientSpans, RequestSpans

WaitMany: TypeAlias = Literal["stored", "applied"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `RebaserClient.enqueue_many`. Each field is an argument of `enqueue_updates`."""

    workspace: str
    change_set: str
    updates: Iterable[Update] = ()
    request_id: str | None = None
    from_change_set: str | None = None
    recompute: Recompute | None = None
    author: str | None = None
    message: str = ""
    expect_at: int | None = None


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of one request of `RebaserClient.enqueue_many`.

    - `id`: the id with which the request can be sent again; empty if the id or a name in the request is invalid.
    - `response`: the answer of the server; None if the request failed, or if the call waited only until the request was
      stored.
    - `error`: the error; None if the request succeeded.
    """

    request: Request
    id: str
    response: EnqueueUpdatesResponse | None = None
    error: RebaserError | None = None


class RequestServices(NamedTuple):
    """The parts of a client that send requests.

    `new_id` returns the given id if it is valid, and creates an id if None is given. `author` is the author of requests
    that do not specify one. `spans` starts the spans of requests; None if the program is not traced.
    """

    connection: Connection
    sender: RequestSender
    tasks: TaskPublisher
    resender: Resender
    in_flight: InFlight
    limits: Limits
    new_id: Callable[[str | None], RequestId]
    author: str = ""
    spans: "ClientSpans | None" = None


class _Item:
    """One request in progress. Its futures report to `call` when they complete."""

    __slots__ = (
        "attempt", "call", "deadline", "done", "error", "id", "index", "key", "outgoing", "reply", "request", "retried",
        "spans", "stored", "stored_at",
    )  # fmt: skip

    def __init__(self, call: "ManyRequests", index: int, request: Request, key: ChangeSetKey, id_: RequestId) -> None:
        self.call = call
        self.index = index
        self.request = request
        self.key = key
        self.id = id_
        self.deadline = 0.0  # loop time
        self.reply: tuple[str, asyncio.Future[Msg]] | None = None  # the reply subject, and the future of the answer
        self.outgoing: OutgoingRequest | None = None  # set when the request is encoded
        self.attempt: PendingRequest | None = None  # the first attempt to store the request, until it is confirmed
        self.error: RebaserError | None = None  # the reason why the request could not be stored
        self.retried = False  # whether a separate task keeps trying to store the request, and enforces the timeout
        self.stored = self.done = False
        self.stored_at = 0.0
        self.spans: RequestSpans | None = None

    def on_confirmation(self, _: asyncio.Future[Msg]) -> None:
        self.call.report(ManyRequests.confirmed, self)

    def on_answer(self, _: asyncio.Future[Msg]) -> None:
        self.call.report(ManyRequests.answered, self)


class ManyRequests:
    """One call of `RebaserClient.enqueue_many`."""

    _group: TaskGroup

    def __init__(
        self,
        services: RequestServices,
        wait: WaitMany,
        timeout: float,
        on_outcome: Callable[[RequestOutcome], None] | None,
    ) -> None:
        self._services = services
        self._replies = wait == "applied"
        self._timeout = timeout
        self._on_outcome = on_outcome
        self._loop = asyncio.get_running_loop()
        self._outcomes: dict[int, RequestOutcome] = {}
        self._open: dict[int, _Item] = {}  # the incomplete requests, in the order of their deadlines
        self._storing: dict[ChangeSetKey, deque[_Item]] = {}  # by change set; the first request of each is being stored
        self._published_tasks: dict[ChangeSetKey, anyio.Event] = {}  # set when the task of a change set is published
        self._ready: deque[_Item] = deque()  # the requests to publish now
        self._events: deque[tuple[Callable[[ManyRequests, _Item], None], _Item]] = deque()
        self._wake: asyncio.Future[None] = self._loop.create_future()
        self._admission: asyncio.Future[None] | None = None  # the admission of the next request, from `InFlight`
        self._timer: asyncio.TimerHandle | None = None  # fires at the deadline of the first item in `_open`
        self._taken = 0

    async def run(self, requests: Iterable[Request]) -> list[RequestOutcome]:
        """Send `requests`, and return when all are complete."""
        source = iter(requests)
        more = True
        async with flat_task_group() as self._group:
            try:
                while more or self._open:
                    if more and self._has_room():
                        request = next(source, None)
                        more = request is not None
                        if request is not None:
                            await self._take(request)
                            await cooperate()
                    elif not self._events:
                        await self._wake
                        self._wake = self._loop.create_future()
                    while self._events:
                        handle, item = self._events.popleft()
                        if not item.done:
                            handle(self, item)
                    if self._timer is None:
                        self._expire()
                    await self._publish_ready()
            finally:
                self._close()
        with anyio.move_on_after(self._timeout):
            for published in self._published_tasks.values():
                await published.wait()
        return [self._outcomes[index] for index in sorted(self._outcomes)]

    def report(self, handle: Callable[["ManyRequests", _Item], None], item: _Item) -> None:
        """Make the loop in `run` call `handle` for `item`, unless the item is complete by then."""
        self._events.append((handle, item))
        self._wake_up()

    def _wake_up(self, _: object = None) -> None:
        if not self._wake.done():
            self._wake.set_result(None)

    # -- the steps of a request ------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        """Return whether the next request may be taken. If not, wake the loop in `run` as soon as it may be taken."""
        in_flight = self._services.in_flight
        if len(self._open) >= in_flight.limit:
            return False
        if self._admission is None:
            self._admission = in_flight.ask()
            if not self._admission.done():
                self._admission.add_done_callback(self._wake_up)
        return self._admission.done()

    async def _take(self, request: object) -> None:
        """Check and encode a request, and queue it. It is published once the previous request is stored."""
        if not isinstance(request, Request):
            kind = type(request).__name__
            text = f"each item of `requests` must be a Request, not a {kind}"
            raise UnprocessableError(text, code="invalid_argument")
        services = self._services
        index, self._taken = self._taken, self._taken + 1
        try:
            key = known_key(request.workspace, request.change_set)
            id_ = services.new_id(request.request_id)
        except RebaserError as error:
            self._conclude(index, RequestOutcome(request, "", error=error))  # `_admission` is kept for the next request
            return
        item = self._open[index] = _Item(self, index, request, key, id_)
        item.deadline = self._loop.time() + self._timeout
        self._admission = None  # this item uses the admission; the next item needs another one
        if services.spans is not None:
            item.spans = services.spans.request(key, id_, "applied" if self._replies else "stored")
        inbox = ""
        if self._replies:
            item.reply = services.connection.open_reply()
            inbox = item.reply[0]
        try:
            item.outgoing = await services.sender.prepare(
                key,
                id_,
                request.updates,
                item.deadline,
                from_change_set=request.from_change_set,
                recompute=request.recompute,
                author=services.author if request.author is None else request.author,
                message=request.message,
                expect_at=request.expect_at,
                inbox=inbox,
            )
        except TimeoutError:
            self._finish(item, error=RequestTimeout(id_, self._timeout))
        except RebaserError as error:
            self._finish(item, error=error)
        else:
            queue = self._storing.setdefault(key, deque())
            queue.append(item)
            if queue[0] is item:
                self._ready.append(item)
            if item.reply is not None:
                item.reply[1].add_done_callback(item.on_answer)

    async def _publish_ready(self) -> None:
        while self._ready:
            item = self._ready.popleft()
            if item.done or item.outgoing is None:
                continue
            item.outgoing.trace(item.spans, item.request.updates)
            try:
                item.attempt = await self._services.sender.start(item.outgoing, item.deadline)
            except RebaserError as error:
                self._store_in_task(item, error)
            else:
                item.attempt.future.add_done_callback(item.on_confirmation)

    def confirmed(self, item: _Item) -> None:
        """Handle the confirmation or the failure of the first attempt to store a request."""
        attempt, item.attempt = item.attempt, None
        if attempt is None or item.outgoing is None:
            return
        try:
            ack = pub_ack(attempt.future.result())
        except RebaserError as error:
            self._store_in_task(item, error)
        else:
            if self._services.sender.accept(item.outgoing, ack):
                self.stored(item)
            else:
                self._store_in_task(item)
        finally:
            attempt.close()

    def _store_in_task(self, item: _Item, first: RebaserError | None = None) -> None:
        item.retried = True
        self._group.start_soon(self._store, item, first)

    async def _store(self, item: _Item, first: RebaserError | None) -> None:
        assert item.outgoing is not None  # noqa: S101 - an attempt was made
        try:
            await self._services.sender.store(item.outgoing, item.deadline, first)
        except TimeoutError:
            item.error = RequestTimeout(item.id, self._timeout)
        except RebaserError as error:
            item.error = error
        self.report(ManyRequests.stored if item.error is None else ManyRequests.failed, item)

    def failed(self, item: _Item) -> None:
        """Handle the failure of the last attempt to store a request."""
        self._finish(item, error=item.error)

    def stored(self, item: _Item) -> None:
        """Handle a stored request: publish the task of the change set, unless the request has already been answered."""
        services = self._services
        item.stored, item.retried, item.stored_at = True, False, self._loop.time()
        self._leave_queue(item)
        if item.reply is None or item.outgoing is None:
            self._published_tasks[item.key] = services.tasks.start(item.key)
            self._finish(item)
        elif item.reply[1].done():
            self.answered(item)
        else:
            services.tasks.start_unless_answered(item.key, item.reply[1])
            services.resender.add(item.outgoing)

    def answered(self, item: _Item) -> None:
        """Handle the answer of a server. If the request is not confirmed as stored yet, do nothing: `stored` handles
        the answer later."""
        if not item.stored or item.reply is None:
            return
        try:
            message = item.reply[1].result()
            self._services.tasks.record_answer(item.key, item.stored_at)
            response = answer(message, item.key, item.id, self._services.limits)
        except RebaserError as error:
            self._finish(item, error=error)
        else:
            rejected = None if type(response.status) is Success else rejection(item.id, response)
            self._finish(item, response, rejected)

    def _expire(self) -> None:
        """Give up the requests whose timeout has expired, and set the timer for the next deadline."""
        now = self._loop.time()
        for item in list(self._open.values()):
            if item.deadline > now:
                self._timer = self._loop.call_at(item.deadline, self._time_is_over)
                return
            if item.retried:
                continue
            unsent = not item.stored and item.attempt is None
            late = not_sent(self._services.connection, item.id, self._timeout) if unsent else None
            self._finish(item, error=late or RequestTimeout(item.id, self._timeout))

    def _time_is_over(self) -> None:
        self._timer = None
        self._wake_up()

    # -- the end of a request --------------------------------------------------------------------------------------

    def _finish(
        self, item: _Item, response: EnqueueUpdatesResponse | None = None, error: RebaserError | None = None
    ) -> None:
        del self._open[item.index]
        self._release(item)
        if not item.stored:
            self._leave_queue(item)
        if item.spans is not None:
            if response is not None:
                item.spans.answered(response)
            item.spans.ended(error)
        self._conclude(item.index, RequestOutcome(item.request, item.id, response, error))

    def _conclude(self, index: int, outcome: RequestOutcome) -> None:
        self._outcomes[index] = outcome
        if self._on_outcome is not None:
            self._on_outcome(outcome)

    def _release(self, item: _Item) -> None:
        """Stop waiting for the confirmation and the answer of `item`."""
        item.done = True
        if item.attempt is not None:
            item.attempt.close()
        if item.reply is not None:
            self._services.connection.close_reply(item.reply[0])
        if item.outgoing is not None:
            self._services.resender.remove(item.outgoing)

    def _leave_queue(self, item: _Item) -> None:
        """Release the admission of `item`, and let the next request of its change set be published."""
        self._services.in_flight.release()
        queue = self._storing.get(item.key)
        if queue is None or item not in queue:  # the request could not be encoded
            return
        first = queue[0] is item
        queue.remove(item)
        if not queue:
            del self._storing[item.key]
        elif first:
            self._ready.append(queue[0])

    def _close(self) -> None:
        for item in self._open.values():
            self._release(item)
            if item.spans is not None:
                item.spans.ended(None)
            if not item.stored:
                self._services.in_flight.release()
        if self._admission is not None:
            self._services.in_flight.withdraw(self._admission)
        if self._timer is not None:
            self._timer.cancel()
