"""The connection to NATS that all other code shares.

Invariants: one inbox subscription serves all requests. If the connection is lost, the client reconnects, with retries
until that succeeds, and then calls the `on_reconnect` hooks. Publishing without a connection fails at once, and the
message is not sent later.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Self, TypeVarTuple, Unpack

import anyio
import nats.errors
from anyio.abc import TaskGroup

from rebaser_client.backoff import Backoff
from rebaser_client.logs import get_logger
from rebaser_client.nats.access import Access, check_access
from rebaser_client.nats.api_outage import ApiOutage
from rebaser_client.nats.denials import Denials
from rebaser_client.nats.errors import (
    ClientClosedError,
    NoAnswerError,
    NoRespondersError,
    NotAllowed,
    NotConnectedError,
)
from rebaser_client.nats.header_lines import Headers
from rebaser_client.nats.hooks import ConnectionHooks
from rebaser_client.nats.link import Link, LinkOptions, parse_servers, translate, translate_errors, without_secrets
from rebaser_client.nats.messages import STATUS, Msg
from rebaser_client.nats.parser import AnyHandler
from rebaser_client.nats.replies import PendingRequest, Replies
from rebaser_client.nats.subscription import MessageIterator, Subscription
from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import RebaserError

log = get_logger(__name__)
Args = TypeVarTuple("Args")

CONNECT_BOUND = 5.0  # the maximum number of seconds for an attempt to connect
RETRY_MIN, RETRY_MAX = 0.05, 2.0  # seconds between attempts to reconnect
QUEUE = 4096  # messages that `subscribe` buffers for its reader
JETSTREAM = "$JS."  # prefix of the subjects of the JetStream API, in any domain


class Connection(ConnectionHooks):
    """A connection to NATS, opened by `connect`. Call its methods only in the asyncio event loop that opened it."""

    def __init__(self, options: LinkOptions, group: TaskGroup) -> None:
        super().__init__()
        self._options, self._group = options, group
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._linked = anyio.Event()
        self._subscriptions: dict[Subscription, None] = {}
        self._closed, self._lost_at = False, self._loop.time()
        self._api_outage, self._denials = ApiOutage(), Denials()
        self._id, self._count = secrets.token_hex(8), 0
        self._replies = Replies(f"{options.inbox_prefix}.{self._id}.")
        self.domain = options.access.get("domain")  # the domain of JetStream; None: the default of the account
        self.max_payload, self.problem = 1024 * 1024, ""  # `problem`: why the last attempt to connect again failed
        self.clustered = False  # whether NATS consists of more than one server
        self.server_version = ""  # the version of the server at the other end; empty until the first connection

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        name: str = "rebaser",
        inbox_prefix: str = "_INBOX",
        timeout: float = CONNECT_BOUND,  # noqa: ASYNC109 - divided among the servers that are tried
        ping_interval: float = 5.0,
        **access: Unpack[Access],
    ) -> AsyncIterator[Self]:
        """Connect to NATS at `url` (one server, or several separated by commas), and stay connected.

        Raise `NotConnectedError`, or its subclasses `NotAuthorized` and `NotSecure`, within `timeout` seconds. Raise
        `NotAllowed` if the client may not subscribe to its inbox, and `ConfigError` for invalid options. A dead server
        is noticed within two ping intervals (`ping_interval` is in seconds).
        """
        check_access(access)
        options = LinkOptions(parse_servers(url), name, inbox_prefix, ping_interval, access)
        async with flat_task_group() as group:
            connection = cls(options, group)
            try:
                await connection._open(timeout)
                yield connection
            finally:
                connection._closed = True
                group.cancel_scope.cancel()
                await connection._close()

    # -- sending ---------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._link is not None

    def away_and_rtt(self) -> tuple[float, float]:
        """Return, in seconds, how long the connection has been down (0 if it is up), and the last round-trip time (0 if
        unknown)."""
        return (self._loop.time() - self._lost_at, 0.0) if self._link is None else (0.0, self._link.rtt)

    def check_open(self) -> None:
        """Raise `ClientClosedError` if the connection has been closed."""
        if self._closed:
            raise ClientClosedError

    def _raise_not_connected(self) -> NoReturn:
        self.check_open()
        raise NotConnectedError("there is no connection to NATS: try again after the client has reconnected")

    async def wait_connected(self) -> None:
        """Wait until there is a connection, without a timeout. Raise `ClientClosedError` if the client is closed."""
        while self._link is None:
            self.check_open()
            await self._linked.wait()

    async def publish(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None, *, reply: str = ""
    ) -> None:
        """Send a message. There is no confirmation that a subscriber received it.

        Raise `NotConnectedError`, or `UnprocessableError` for a message that cannot be sent: too large, or with an
        invalid subject or header name.
        """
        if not self.publish_soon(subject, payload, headers, reply=reply):
            await self.flush()

    def publish_soon(self, subject: str, payload: bytes, headers: Headers | None, *, reply: str = "") -> bool:
        """Send a message like `publish`, but without waiting. Return False if the caller should await `flush`, because
        many bytes are unsent."""
        link = self._link or self._raise_not_connected()
        if reply and (" " in reply or not reply.isprintable()):
            raise translate(nats.errors.BadSubjectError())
        return link.publish(subject, payload, reply, headers)

    def publish_all(self, messages: Iterable[tuple[str, bytes]]) -> bool:
        """Send small messages, pairs of a valid subject and a payload. Raise and return the same as `publish_soon`."""
        link = self._link or self._raise_not_connected()
        with translate_errors():
            return link.publish_all(messages)

    async def flush(self) -> None:
        """Wait until all unsent messages have been written to the socket, for at most 5 seconds."""
        if (link := self._link) is not None:
            await link.flush()

    def publish_now(self, subject: str, payload: bytes, *, reply: str = "") -> bool:
        """Write a small, urgent message to the socket at once. Return False if it could not be sent."""
        return self._link is not None and self._link.publish_now(subject, payload, reply)

    def post(self, subject: str, payload: bytes = b"") -> None:
        """Send a message in the background, without waiting. Without a connection, the message is lost."""
        self.spawn(self._post, subject, payload)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Headers | None = None,
        *,
        timeout: float = 5.0,  # noqa: ASYNC109 - the timer takes a tenth of the time of a cancel scope
    ) -> Msg:
        """Publish a message and return its answer. Without a connection, first wait for one.

        Raise `NoRespondersError`, `NoAnswerError` (no answer within `timeout` seconds, or the connection was lost),
        and the errors of `publish`.
        """
        if self._link is None:
            began = self._loop.time()
            with anyio.move_on_after(timeout):
                await self.wait_connected()
            timeout = max(timeout - (self._loop.time() - began), 0.0)
        link = self._link or self._raise_not_connected()
        pending = self._replies.open_request(subject, timeout)
        try:
            if not link.publish(subject, payload, pending.inbox, headers):
                await link.flush()
            message = await pending.future
        except BaseException as error:
            pending.close()
            if isinstance(error, NoAnswerError) and link is self._link and subject.startswith(JETSTREAM):
                self._api_outage.timed_out(self._loop.time(), timeout)
            raise
        if not message.data and message.headers.get(STATUS) == "503":
            raise NoRespondersError(
                f"there is no responder on {subject}: no stream has this subject, or JetStream is not available"
            )
        if subject.startswith(JETSTREAM):
            self._api_outage.answered(self._loop.time())
        return message

    async def start_request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, within: float
    ) -> PendingRequest:
        """Publish a message and return a pending request, which the caller has to close.

        The future of the pending request fails if no answer arrives `within` seconds. A 503 status counts as an answer.
        Raise the errors of `publish`.
        """
        pending = self._replies.open_request(subject, within)
        try:
            if not self.publish_soon(subject, payload, headers, reply=pending.inbox):
                await self.flush()
        except BaseException:
            pending.close()
            raise
        return pending

    def open_reply(self, subject: str = "", *, timeout: float | None = None) -> tuple[str, asyncio.Future[Msg]]:
        """Return a reply subject for one answer to a request on `subject`, and the future of the answer.

        The future fails after `timeout` seconds. Both remain valid after a reconnect, until `close_reply` is called.
        """
        pending = self._replies.open(subject, timeout)
        return pending.inbox, pending.future

    def close_reply(self, inbox: str) -> None:
        """Stop waiting for an answer on `inbox`."""
        self._replies.close(inbox)

    def new_inbox(self) -> str:
        """Return a new, unique subject without wildcards."""
        return f"{self._options.inbox_prefix}.{self.new_name()}"

    def new_name(self) -> str:
        """Return a new, unique token for a subject or a name."""
        self._count += 1
        return f"{self._id}{self._count:x}"

    # -- listening -------------------------------------------------------------------------------------------------

    async def listen(
        self,
        subject: str,
        handler: AnyHandler,
        *,
        lasting: bool = True,
        on_denied: Callable[[NotAllowed], None] | None = None,
        request_subject: str | None = None,
    ) -> Subscription:
        """Subscribe to `subject`, so that `handler` is called in the read loop for each message.

        A `lasting` subscription may begin without a connection, and survives a reconnect. Any other subscription ends
        when the connection is lost. `on_denied` is called if NATS refuses the subscription, or refuses publishes to
        `request_subject`, the subject on which the client requests the messages.
        """
        link = self._link
        self.check_open()
        if link is None and not lasting:
            self._raise_not_connected()
        subscription = Subscription(
            self, subject, handler, lasting, on_denied=on_denied, request_subject=request_subject
        )
        self._subscriptions[subscription] = None
        if link is not None:
            try:
                await subscription.attach(link)
            except BaseException as error:
                if not (lasting and isinstance(error, NotConnectedError)):
                    self.forget_subscription(subscription)
                    raise
        return subscription

    @asynccontextmanager
    async def subscribe(
        self, subject: str, *, max_pending: int = QUEUE, request_subject: str | None = None
    ) -> AsyncIterator[AsyncIterator[Msg]]:
        """Yield an iterator over the messages on `subject`. It ends when the connection is closed.

        If the reader is too slow, messages beyond `max_pending` are dropped, and a warning is logged. Iteration raises
        `NotAllowed` if NATS refuses the subscription, or refuses publishes to `request_subject`, the subject on which
        the client requests the messages.
        """
        messages = MessageIterator(max_pending)
        with messages:
            subscription = await self.listen(
                subject, messages.handle, on_denied=messages.deny, request_subject=request_subject
            )
            remove_hook = self.on_close(messages.end)
            try:
                yield messages
            finally:
                remove_hook()
                with anyio.CancelScope(shield=True):
                    await subscription.close()

    def has_subscription(self, subscription: Subscription) -> bool:
        """Return whether `subscription` is open. This method implements the protocol `Subscriptions`."""
        return subscription in self._subscriptions

    def forget_subscription(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    # -- background ------------------------------------------------------------------------------------------------

    def spawn(self, run: Callable[[*Args], Coroutine[Any, Any, None]], *args: *Args) -> None:
        """Run `run` in the background until it ends or the connection is closed. `run` must handle its own errors.

        If the connection is closed already, do nothing.
        """
        if not self._closed:
            self._group.start_soon(run, *args)

    # -- opening and closing links ---------------------------------------------------------------------------------

    async def _open(self, timeout: float) -> None:  # noqa: ASYNC109 - passed on to `Link.open`
        link = await Link.open(self._options, dict.fromkeys(self._options.servers), timeout, self._denied)
        answers = Subscription(
            self, self._replies.inbox + "*", self._replies.handle, lasting=True, on_denied=self._denials.refuse
        )
        self._subscriptions[answers] = None
        try:
            await self._attach(link)
        except BaseException:
            await link.close()
            raise
        self._group.start_soon(self._supervise, link)
        self._group.start_soon(self._on_tick.run)

    async def _attach(self, link: Link) -> None:
        # The loop repeats, because subscriptions may be added and removed while others are attached.
        while missing := [subscription for subscription in self._subscriptions if not subscription.is_attached(link)]:
            for subscription in missing:
                await subscription.attach(link)
            if not link.up:
                raise NotConnectedError(f"the new connection to NATS was lost again: {link.reason}")
        await link.round_trip()  # after this, the server has accepted or denied the subscription to the inbox
        self._denials.check()
        client = link.client
        self.max_payload, self.clustered, self.server_version = client.max_payload, client.clustered, client.version
        self._link = link
        self._linked.set()

    async def _supervise(self, link: Link) -> None:
        while True:
            await link.watch(self._options.ping_interval)
            self._detach()
            log.warning("nats_disconnected", name=self._options.name, reason=link.reason)
            # The servers of a cluster announce each other. The configured servers may be gone by now.
            servers = {**link.client.known_servers, **dict.fromkeys(self._options.servers)}
            await link.close()
            link = await self._open_again(servers)
            server = link.client.connected_url
            log.info("nats_reconnected", name=self._options.name, server=server and without_secrets(server.netloc))
            self._on_reconnect.call()

    def _denied(self, error: NotAllowed) -> None:
        """Pass a denial to the caller whose operation was denied, or log it. A denial arrives some time after the
        operation."""
        reported = error.operation == "publish" and self._replies.deny(error)
        for subscription in list(self._subscriptions):
            reported = subscription.report_denial(error) or reported
        if not reported:
            self._denials.log(error, self._loop.time())

    def _detach(self) -> None:
        self._link, self._lost_at, self.problem = None, self._loop.time(), ""
        if self._linked.is_set():  # an event that is not set is kept, because callers may wait for it
            self._linked = anyio.Event()
        self._subscriptions = {subscription: None for subscription in self._subscriptions if subscription.lasting}
        self._replies.lose()

    async def _open_again(self, servers: dict[str, str | None]) -> Link:
        backoff = Backoff(RETRY_MIN, RETRY_MAX)
        while True:
            link: Link | None = None
            try:
                link = await Link.open(self._options, servers, CONNECT_BOUND, self._denied)
                await self._attach(link)
            except RebaserError as error:
                if link is not None:
                    await link.close()
                self.problem = error.message
                log.warning("nats_reconnect_failed", name=self._options.name, reason=error.message)
            else:
                return link
            await anyio.sleep(backoff.next_delay())

    async def _close(self) -> None:
        link = self._link
        self._detach()
        if link is not None:
            await link.close()
        self._linked.set()
        self._replies.close_all()
        self._on_close.call()
        log.debug("nats_closed", name=self._options.name)

    async def _post(self, subject: str, payload: bytes) -> None:
        try:
            await self.publish(subject, payload)
        except RebaserError as error:
            log.debug("post_failed", subject=subject, reason=error.message)
