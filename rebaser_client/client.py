"""`RebaserClient`: sends updates, waits until they are applied, reads values, follows commits.

Invariant: a task is published for a change set only after NATS has confirmed that the request is stored. A request can
be sent again with the same id: servers answer it again, but never apply it twice.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Literal, Self, TypeAlias, Unpack, get_args

import anyio
from anyio.abc import TaskGroup

from rebaser_client.admin.dead_letters import DeadLetterBox
from rebaser_client.background_context import BackgroundContext, require_asyncio
from rebaser_client.blobs import BlobStore, open_blobs
from rebaser_client.errors import RequestTimeout
from rebaser_client.jetstream import Connection, JetStream, NoAnswerError
from rebaser_client.operations.reverts import RevertOperations, RevertOptions
from rebaser_client.operations.statuses import StatusOperations
from rebaser_client.options import (
    MAX_IN_FLIGHT,
    ClientOptions,
    access_options,
    author_option,
    content_type_option,
    max_in_flight_option,
)
from rebaser_client.requests.backpressure import Backpressure
from rebaser_client.requests.in_flight import InFlight
from rebaser_client.requests.many import ManyRequests, Request, RequestOutcome, RequestServices, WaitMany
from rebaser_client.requests.outcomes import answer, known_key, not_sent, rejection
from rebaser_client.requests.resender import Resender
from rebaser_client.requests.sender import OutgoingRequest, RequestSender
from rebaser_client.requests.task_publisher import TaskPublisher
from rebaser_client.requests.tracing import client_spans, request_spans
from rebaser_core.branches.branch import Action, Create
from rebaser_core.commit import Reverts
from rebaser_core.encoding.envelope import CBOR, ContentType
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId, check_request_id, numbered_ulid, random_ulid
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.messages import EnqueueUpdatesResponse, Success
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Recompute, Update

Wait: TypeAlias = Literal["applied", "derived"]
WAITS, MANY_WAITS = get_args(Wait), get_args(WaitMany)

DEFAULT_URL = "nats://127.0.0.1:4222"
RESEND_TIMEOUT = 5.0  # seconds to store a request again; if that fails, the resender retries at its next check


class RebaserClient(RevertOperations, StatusOperations):
    """A connection to one installation. All tasks of one event loop can share a client.

    Create a client with `connect`:

        async with RebaserClient.connect("nats://127.0.0.1:4222") as client:
            await client.enqueue_updates("shop", "main", [Set("price", 9.5)])

    The client needs asyncio; uvloop works, too.
    """

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        blobs: BlobStore,
        limits: Limits,
        group: TaskGroup,
        *,
        content_type: ContentType = CBOR,
        check_formulas: bool = True,
        max_in_flight: int = MAX_IN_FLIGHT,
        author: str = "",
    ) -> None:
        super().__init__(connection, subjects, blobs, limits, group)
        self._author = author
        self._loop = asyncio.get_running_loop()
        self._id_time, self._id_start, self._id_number = 0, "", 0
        self._spans = client_spans(subjects)
        self._in_flight = InFlight(max_in_flight)
        self._task_publisher = TaskPublisher(self._js, subjects, group)
        backpressure = Backpressure(self._loop.time)
        self._sender = RequestSender(
            self._js, subjects, blobs, limits, backpressure, content_type=content_type, check_formulas=check_formulas
        )
        self._resender = Resender(self._js, subjects, group, self._send_again)
        self.dead_letters = DeadLetterBox(self._js, subjects, blobs, backpressure)
        self._context: BackgroundContext[Self] | None = None

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str = DEFAULT_URL, **options: Unpack[ClientOptions]) -> AsyncGenerator[Self, None]:
        """Connect to NATS at `url` (one URL, or several separated by commas). Disconnect when the `async with` block
        ends.

        See `ClientOptions` for `options`. Raise `NotConnectedError` if no NATS server answers, and `ConfigError` for
        invalid options. Exceptions from the block are raised unchanged.
        """
        client = await cls.open(url, **options)
        try:
            yield client
        except BaseException:
            with suppress(Exception):  # the body's exception takes precedence over an error in `aclose`
                await client.aclose()
            raise
        await client.aclose()

    @classmethod
    async def open(cls, url: str = DEFAULT_URL, **options: Unpack[ClientOptions]) -> Self:
        """Connect like `connect`, but without a context manager, for example in notebooks and web frameworks.

        The caller closes the client with `aclose`, from any task of the event loop. Without `aclose`, the connection
        stays open until the loop ends.
        """
        require_asyncio()
        context = BackgroundContext(cls._connected(url, **options))
        client = await context.open()
        client._context = context  # noqa: SLF001 - an attribute of this class
        return client

    async def aclose(self) -> None:
        """Close the client. Calls in progress and all later calls raise `ClientClosedError`."""
        if self._context is not None:
            await self._context.close()

    @classmethod
    @asynccontextmanager
    async def _connected(cls, url: str, **options: Unpack[ClientOptions]) -> AsyncGenerator[Self, None]:
        subjects = Subjects(options.get("prefix", ""))
        content_type = content_type_option(options)
        max_in_flight = max_in_flight_option(options)
        author = author_option(options)
        connection = Connection.connect(
            url,
            name="rebaser-client",
            inbox_prefix=options.get("inbox_prefix", "_INBOX"),
            **access_options(options),
        )
        async with connection as nats, anyio.create_task_group() as group:
            blobs = open_blobs(options.get("blobs"), JetStream(nats), subjects.blobs_bucket)
            try:
                yield cls(
                    nats,
                    subjects,
                    blobs,
                    options.get("limits", DEFAULT_LIMITS),
                    group,
                    content_type=content_type,
                    check_formulas=options.get("check_formulas", True),
                    max_in_flight=max_in_flight,
                    author=author,
                )
            finally:
                group.cancel_scope.cancel()

    async def enqueue_updates(
        self,
        workspace: str,
        change_set: str,
        updates: Iterable[Update],
        *,
        request_id: str | None = None,
        from_change_set: str | None = None,
        recompute: Recompute | None = None,
        author: str | None = None,
        message: str = "",
        expect_at: int | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109 - the error must carry the request id
    ) -> RequestId:
        """Store a request durably, publish a task for its change set, and return the request id.

        - `request_id`: to send an earlier request again, pass its id. By default, the request gets a new id.
        - `from_change_set`: the change set in which the updates were made. If it is given, removing a value that does
          not exist in `change_set` is a conflict.
        - `recompute`: the derived values to compute again after the updates, even if their inputs did not change: all
          derived values, or those of one function.
        - `author` (up to 128 characters; by default, the author of the client) and `message` (up to 1,024 characters):
          who makes the edits, and why. The log records both.
        - `expect_at`: the log sequence on which the edits are based. The request is rejected, with code `moved`, if one
          of the values to edit was defined or removed after that sequence. If one of these values does not exist, the
          request is rejected if any value of the change set was edited after that sequence.
        - `timeout`: the maximum duration of the call, in seconds.

        Raises:

        - `UnprocessableError` for an invalid update; the message states the update's position and id. `TooLarge` if the
          request is too large.
        - `QueueFull`, `NotReadyError`, or `NotConnectedError` (no connection within `timeout`): nothing was stored.
        - `RequestTimeout`, which has the request id: the request may still be applied.

        If the task cannot be published, no error is raised: the request is stored, and a server publishes the task
        later.
        """
        key = known_key(workspace, change_set)
        id_ = self._request_id(request_id)
        with request_spans(self._spans, key, id_, "stored") as spans:
            deadline = self._loop.time() + timeout
            if not self._in_flight.enter_now():
                await self._enter(id_, timeout)
            try:
                request = await self._sender.prepare(
                    key, id_, updates, deadline, from_change_set=from_change_set, recompute=recompute,
                    author=self._author if author is None else author, message=message, expect_at=expect_at,
                )  # fmt: skip
                request.trace(spans, updates)
                await self._sender.store(request, deadline)
            except TimeoutError:
                raise RequestTimeout(id_, timeout) from None
            finally:
                self._in_flight.release()
            with anyio.move_on_after(deadline - self._loop.time()):
                await self._task_publisher.publish(key)
            return id_

    async def enqueue_updates_with_reply(
        self,
        workspace: str,
        change_set: str,
        updates: Iterable[Update],
        *,
        wait: Wait = "applied",
        timeout: float = 60.0,  # noqa: ASYNC109 - the error must carry the request id
        request_id: str | None = None,
        from_change_set: str | None = None,
        recompute: Recompute | None = None,
        author: str | None = None,
        message: str = "",
        expect_at: int | None = None,
        action: Action | None = None,
    ) -> EnqueueUpdatesResponse:
        """Send a request, wait for the server's answer, and return the answer.

        If `wait` is `applied`, the call returns when the commit of the request is durable. If it is `derived`, the call
        returns when the derived values are up to date as of that commit. The returned answer always reports success; a
        rejection is raised as an error. Methods such as `revert` and `apply` pass an `action`, which the server
        executes instead of updates. Raise the errors of `enqueue_updates`, and these:

        - `RequestRejected` if the request cannot be processed.
        - `RequestIdReused` if another request had the same id.
        - `RequestConflicts` if updates from `from_change_set`, a revert or an applied branch conflict with the change
          set.

        A `RequestTimeout` has the commit if the request was applied, but derived values are not up to date yet.
        """
        if wait not in WAITS:
            raise UnprocessableError(f"wait must be 'applied' or 'derived', not {wait!r}", code="invalid_argument")
        key = known_key(workspace, change_set)
        id_ = self._request_id(request_id)
        with request_spans(self._spans, key, id_, wait) as spans:
            deadline = self._loop.time() + timeout
            # The reply enforces the timeout, because a cancel scope would take as much time as encoding the request.
            inbox, reply = self._connection.open_reply(timeout=timeout)
            entered = False
            request: OutgoingRequest | None = None
            commit: int | None = None
            try:
                if not self._in_flight.enter_now():
                    await self._enter(id_, timeout)
                entered = True
                request = await self._sender.prepare(
                    key, id_, updates, deadline, from_change_set=from_change_set, recompute=recompute,
                    author=self._author if author is None else author, message=message, expect_at=expect_at,
                    action=action, inbox=inbox,
                )  # fmt: skip
                request.trace(spans, updates)
                hinted = self._task_publisher.hint(key)
                await self._sender.store(request, deadline)
                entered = False
                self._in_flight.release()
                stored_at = self._loop.time()
                self._task_publisher.start_unless_answered(key, reply, hinted=hinted)
                self._resender.add(request)
                try:
                    received = await reply
                except NoAnswerError:
                    raise TimeoutError from None
                self._resender.remove(request)  # done before the wait for derived values, which may take a long time
                request = None
                if not isinstance(action, Create):  # after a `create` commit, no server keeps working on the change set
                    self._task_publisher.record_answer(key, stored_at)
                response = answer(received, key, id_, self._limits)
                if spans is not None:
                    spans.answered(response)
                if wait == "derived" and isinstance(response.status, Success):
                    commit = response.status.commit
                    with anyio.fail_after(deadline - self._loop.time()):
                        await self._coverage.wait(key, commit)
            except TimeoutError:
                raise RequestTimeout(id_, timeout, commit) from None
            finally:
                if entered:
                    self._in_flight.release()
                self._connection.close_reply(inbox)
                if request is not None:
                    self._resender.remove(request)
            if type(response.status) is not Success:
                raise rejection(id_, response)
            return response

    async def enqueue_many(
        self,
        requests: Iterable[Request],
        *,
        wait: WaitMany = "applied",
        timeout: float = 60.0,  # noqa: ASYNC109 - the timeout of each request
        on_outcome: Callable[[RequestOutcome], None] | None = None,
    ) -> list[RequestOutcome]:
        """Send many requests, and return the outcome of each, in the order of `requests`.

        At most `max_in_flight` requests are incomplete at a time. The next request is taken from `requests` when an
        earlier one completes, so `requests` may be a generator of any length. Requests for one change set are stored in
        order: each is sent once the previous one was stored or has failed. A request that fails does not stop the
        others; its outcome has the error.

        - `wait`: a request is complete when it is stored (`stored`), or when its commit is durable (`applied`). To wait
          for derived values, call `wait_covered` with the last commit of a change set.
        - `timeout`: seconds for each request, counted from the moment when it is taken from `requests`.
        - `on_outcome`: called with the outcome of each request when the request is complete.

        The error of an outcome is one of the errors of `enqueue_updates_with_reply`. The call itself raises only
        `UnprocessableError` for an invalid `wait`, and the exceptions that `requests` or `on_outcome` raise. If the
        call ends early, some of the requests may be applied later.
        """
        if wait not in MANY_WAITS:
            raise UnprocessableError(f"wait must be 'stored' or 'applied', not {wait!r}", code="invalid_argument")
        services = RequestServices(
            *(self._connection, self._sender, self._task_publisher, self._resender, self._in_flight),
            *(self._limits, self._request_id, self._author, self._spans),
        )
        return await ManyRequests(services, wait, timeout, on_outcome).run(requests)

    async def recompute(
        self,
        workspace: str,
        change_set: str,
        function: str | None = None,
        *,
        wait: Wait = "derived",
        timeout: float = 60.0,  # noqa: ASYNC109 - the error must carry the request id
        request_id: str | None = None,
    ) -> EnqueueUpdatesResponse:
        """Compute all derived values again, or only those of `function`, and wait until they are up to date.

        This is necessary, for example, after the code of a function changed. Values that depend on a recomputed value
        are computed again only if the recomputed value changed. Raise the errors of `enqueue_updates_with_reply`;
        `RequestRejected` has the code `nothing_to_recompute` if there is no derived value, or none that `function`
        computes.
        """
        return await self.enqueue_updates_with_reply(
            workspace, change_set, (), wait=wait, timeout=timeout, request_id=request_id, recompute=Recompute(function)
        )

    async def _send_revert(
        self, workspace: str, change_set: str, reverts: Reverts, **options: Unpack[RevertOptions]
    ) -> EnqueueUpdatesResponse:
        return await self.enqueue_updates_with_reply(workspace, change_set, (), action=reverts, **options)

    async def _enter(self, id_: RequestId, timeout: float) -> None:  # noqa: ASYNC109 - the error must carry the request id
        """Wait until `_in_flight` admits the request. The caller then has to call `_in_flight.release`."""
        try:
            await self._in_flight.enter(self._loop.time() + timeout)
        except TimeoutError:
            raise not_sent(self._connection, id_, timeout) from None

    def _request_id(self, request_id: str | None) -> RequestId:
        """Return `request_id` if it is valid; return a new ULID if `request_id` is None.

        The last 40 bits of a ULID are incremented for each further ULID in the same millisecond.
        """
        if request_id is not None:
            return check_request_id(request_id)
        now = time.time_ns() // 1_000_000
        if now > self._id_time:
            # 72 of the 80 random bits are drawn, so that increments do not overflow.
            drawn = os.urandom(12)
            self._id_time, self._id_start = now, random_ulid(now, drawn[:8])
            self._id_number = int.from_bytes(drawn[8:], "big")
        self._id_number += 1
        return RequestId(numbered_ulid(self._id_start, self._id_number))

    async def _send_again(self, request: OutgoingRequest) -> None:
        await self._sender.store(request, self._loop.time() + RESEND_TIMEOUT)
        self._task_publisher.start(request.key)
