"""A nats-py client that lives as long as its socket. It opens and closes within a time limit and never reconnects.

Invariant: no message that was passed to a link is sent after the link broke. nats-py itself would reconnect and send
the messages that it had buffered, and then an ack for one delivery could acknowledge a later delivery of the same
message. Therefore, `Connection` opens a new link instead.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Self
from urllib.parse import urlsplit

import anyio
import nats.errors

from rebaser_client.logs import get_logger
from rebaser_client.nats.access import Access, credentials, needs_tls, refusal, tls_context
from rebaser_client.nats.errors import NotAllowed, NotConnectedError
from rebaser_client.nats.header_lines import Headers, encode_headers
from rebaser_client.nats.nats_py import NatsClient
from rebaser_client.nats.parser import AnyHandler
from rebaser_core.errors import ConfigError, RebaserError, TransientError, UnprocessableError

log = get_logger(__name__)

CLOSE_BOUND = 2.0  # the maximum number of seconds that closing takes
TOO_SLOW = "Authentication Timeout"  # the error of NATS for a client that sent no credentials, by default for 2 s
COMMAND_BOUND = 5.0  # the maximum number of seconds for writing one command to the socket
NEVER = 10**8  # seconds; keeps nats-py from sending pings of its own, which are not needed
# The client sends a ping every half ping interval. If no byte arrives in this many consecutive half intervals, the link
# counts as dead. A dead link is therefore noticed within two intervals.
MAX_SILENT_PINGS = 3
MAX_UNANSWERED_PINGS = 12  # applies while other bytes arrive; high, because a PONG may follow a long backlog
FLUSHER_QUEUE = 64 * 1024  # maximum number of unsent commands; a reconnect may cause thousands of them


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """The options for opening a link. `servers` are URLs. `ping_interval` is in seconds.

    The caller has already validated `servers` and `access`.
    """

    servers: list[str] = field(repr=False)  # left out of the representation, because URLs may contain passwords
    name: str
    inbox_prefix: str
    ping_interval: float
    access: Access = field(repr=False)

    @property
    def secure(self) -> bool:
        return needs_tls(self.access, self.servers)


def parse_servers(url: str) -> list[str]:
    """Split a comma-separated list of server URLs. Raise `ConfigError` for an invalid URL, and for an empty list."""
    servers = [part.strip() for part in url.split(",") if part.strip()]
    for server in servers:
        try:
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            usable = parts.scheme in ("nats", "tls", "ws", "wss") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(f"{without_secrets(server)!r} is not a NATS server URL: use nats://host:port")
    if not servers:
        raise ConfigError("the NATS URL is empty: use nats://host:port")
    return servers


def without_secrets(url: str) -> str:
    """Return `url` without the user and the password, so that errors and logs can show it."""
    return url.rpartition("@")[2]


class Link:
    """A connected nats-py client. When the link breaks, the event `closed` is set, and `reason` says why it broke.

    `denied` is called when NATS denies an operation. NATS reports a denial some time after the operation.
    """

    def __init__(self, denied: Callable[[NotAllowed], None], *, secure: bool) -> None:
        self.client = NatsClient(secure=secure)
        self.closed = anyio.Event()
        self.reason = "closed"
        self.rtt = 0.0  # duration of the last round trip in seconds
        self._failure: Exception | None = None
        self._given_up = False
        self._trip: asyncio.Future[bool] | None = None
        self._parser = self.client.parser
        self.client.on_denied = denied

    @property
    def up(self) -> bool:
        return self.client.is_connected

    @classmethod
    async def open(
        cls,
        options: LinkOptions,
        servers: Mapping[str, str | None],
        timeout: float,  # noqa: ASYNC109 - divided among `servers`
        denied: Callable[[NotAllowed], None],
    ) -> Self:
        """Connect to one of `servers`, which maps URLs to the name in the server's certificate (None: the host name).

        Raise `NotConnectedError`, or `ConfigError` for files that cannot be used. This method tries the servers one
        after the other, and divides `timeout` (seconds) equally among them. nats-py is given a single server at a time,
        because it would try no further server after one that accepts the connection but stays silent.
        """
        failure = NotConnectedError("there is no server to try")
        for server in random.sample(list(servers), len(servers)):
            try:
                return await cls._open_one(options, server, servers[server], timeout / len(servers), denied)
            except NotConnectedError as error:
                # The error from a server that refused the client is more useful than the error from a server that is
                # down.
                failure = error if type(failure) is NotConnectedError else failure
        where = ", ".join(without_secrets(server) for server in servers)
        raise type(failure)(f"no connection to NATS at {where}: {failure.message}")

    @classmethod
    async def _open_one(
        cls,
        options: LinkOptions,
        server: str,
        tls_name: str | None,
        timeout: float,  # noqa: ASYNC109 - the share of one server
        denied: Callable[[NotAllowed], None],
    ) -> Self:
        """Connect to `server`. Try again within `timeout` if the server did not wait until a busy client was ready."""
        until, left = time.monotonic() + timeout, timeout
        while True:
            link = cls(denied, secure=options.secure)
            try:
                await link._open(options, server, tls_name, left)
            except NotConnectedError as error:
                left = until - time.monotonic()
                if left <= 0 or TOO_SLOW not in error.message:
                    raise
            else:
                return link

    async def _open(self, options: LinkOptions, server: str, tls_name: str | None, timeout: float) -> None:  # noqa: ASYNC109 - the share of one server
        access = options.access
        try:
            with anyio.fail_after(timeout):
                await self.client.connect(
                    server,
                    error_cb=self._on_error,
                    closed_cb=self._on_closed,
                    name=options.name,
                    inbox_prefix=options.inbox_prefix,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=max(1, int(timeout)),
                    ping_interval=NEVER,  # `watch` sends pings instead, because nats-py may be blocked and send none
                    flush_timeout=COMMAND_BOUND,
                    flusher_queue_size=FLUSHER_QUEUE,
                    **credentials(access, tls=tls_context(access) if options.secure else None, tls_name=tls_name),
                )
            for task in self.client.io_tasks:
                task.add_done_callback(self._on_task_end)
        except (OSError, ValueError, nats.errors.Error, TimeoutError, ImportError) as error:
            # These two errors do not contain the cause, which nats-py has already passed to the callback `_on_error`.
            vague = isinstance(error, (nats.errors.NoServersError, TimeoutError))
            cause = self._failure if vague and self._failure is not None else error
            await self.close()
            if isinstance(cause, ImportError):
                package = _missing(cause)
                raise ConfigError(f"these NATS options need the package {package}: pip install {package}") from error
            raise refusal(cause, _text(cause)) from error
        except BaseException:
            await self.close()
            raise

    async def watch(self, ping_interval: float) -> None:
        """Return when the link is broken. A silent server counts as dead after at most two ping intervals.

        `ping_interval` is in seconds. Only received bytes show that the server is alive, because the socket of a dead
        server accepts bytes for a long time. A process that was paused keeps its connection, because pings that it
        could not send while it was paused are not counted.
        """
        parser = self._parser
        silent = unanswered = 0
        while self.up and not self.closed.is_set():
            reads, pongs = parser.reads, parser.pongs
            self.client.write_ping().add_done_callback(partial(self._note_rtt, time.perf_counter()))
            with anyio.move_on_after(ping_interval / 2):
                await self.closed.wait()
            silent = silent + 1 if parser.reads == reads else 0
            unanswered = unanswered + 1 if parser.pongs == pongs else 0
            if silent >= MAX_SILENT_PINGS or unanswered >= MAX_UNANSWERED_PINGS:
                self._given_up = True
                sent_nothing = silent >= MAX_SILENT_PINGS
                self.reason = "the server sent nothing" if sent_nothing else "the server stopped answering pings"
                self.client.abort()
                return

    async def close(self) -> None:
        """Close within `CLOSE_BOUND` seconds. Unsent messages are dropped."""
        with anyio.move_on_after(CLOSE_BOUND, shield=True):
            try:
                await self.client.close()
            except (OSError, RuntimeError, AssertionError, nats.errors.Error) as error:  # the client may be half open
                log.debug("nats_close_failed", reason=_text(error))
        self.client.abort()
        self._parser.handlers.clear()
        self._end()

    def publish(self, subject: str, payload: bytes, reply: str, headers: Headers | None) -> bool:
        """Write a message in the next iteration of the event loop. Raise `UnprocessableError` or `NotConnectedError`.

        Return False if many bytes are unsent; then the caller should await `flush`. `reply` must be valid, or empty.
        This method replaces `Client.publish` of nats-py, which is slower, and does not count headers as payload.
        """
        try:
            if not subject or " " in subject or not subject.isprintable():
                raise nats.errors.BadSubjectError
            size = len(payload)
            if headers:
                block = headers if isinstance(headers, bytes) else encode_headers(headers)
                size += len(block)
                command = f"HPUB {subject} {reply} {len(block)} {size}\r\n".encode() + block + payload + b"\r\n"
            else:
                command = f"PUB {subject} {reply} {size}\r\n".encode() + payload + b"\r\n"
            return self.client.publish_soon(command, size)
        except nats.errors.Error as error:
            raise translate(error) from error

    def publish_all(self, messages: Iterable[tuple[str, bytes]]) -> bool:
        """Write pairs of a subject and a payload, which are not checked. Raise and return the same as `publish`."""
        if not self.client.is_connected:
            raise nats.errors.ConnectionClosedError
        commands = [b"PUB %b  %d\r\n%b\r\n" % (subject.encode(), len(body), body) for subject, body in messages]
        return self.client.write_soon(b"".join(commands))

    async def flush(self) -> None:
        """Wait until all unsent messages have been written, for at most `COMMAND_BOUND` seconds."""
        with anyio.move_on_after(COMMAND_BOUND):
            await self.client.flushed()

    def publish_now(self, subject: str, payload: bytes, reply: str) -> bool:
        """Write a message to the socket at once, after all unsent messages. Return False if it could not be sent."""
        return self.up and self.client.publish_now(subject, reply, payload)

    async def subscribe(self, subject: str, handler: AnyHandler) -> int:
        """Subscribe to `subject`, so that `handler` is called for each message, and return the id of the subscription.
        Raise `NotConnectedError` if the link is broken."""
        with translate_errors():
            if not self.up:
                raise nats.errors.ConnectionClosedError
            if not subject.isprintable() or " " in subject or not all(subject.split(".")) or ">" in subject[:-1]:
                raise nats.errors.BadSubjectError
        number, flowing = self.client.subscribe_soon(subject)
        self._parser.handle(number, handler)
        if not flowing:
            try:
                await self.flush()
            except BaseException:  # the caller was cancelled, and will never know the number
                self._parser.forget(number)
                if self.up:
                    self.client.unsubscribe_soon(number)
                raise
        return number

    async def unsubscribe(self, subscription_id: int) -> None:
        """Unsubscribe. Messages that still arrive are dropped."""
        self._parser.forget(subscription_id)
        if self.up and not self.client.unsubscribe_soon(subscription_id):
            await self.flush()

    async def drain(self, subscription_id: int) -> None:
        """Unsubscribe, and wait until the handler has been called for every message in transit."""
        try:
            if self.up:
                self.client.unsubscribe_soon(subscription_id)
                with translate_errors(), anyio.fail_after(COMMAND_BOUND):
                    await self.client.write_ping()
        finally:
            self._parser.forget(subscription_id)

    async def round_trip(self) -> None:
        """Wait until the server has processed all commands that were sent before. Raise `NotConnectedError` if the link
        is broken."""
        self._trip = self.client.write_ping()
        try:
            with anyio.fail_after(COMMAND_BOUND):
                await self._trip
        except (TimeoutError, ConnectionError):
            raise NotConnectedError(
                f"the new connection to NATS was lost again, or answered no ping within {COMMAND_BOUND:g} s"
            ) from None

    def _note_rtt(self, sent: float, pong: asyncio.Future[bool]) -> None:
        if not pong.cancelled() and pong.exception() is None:
            self.rtt = time.perf_counter() - sent

    def _end(self) -> None:
        if self._trip is not None and not self._trip.done():
            self._trip.set_exception(ConnectionResetError())
        self.closed.set()

    async def _on_error(self, error: Exception) -> None:
        self._failure = error
        if not self._given_up:
            self.reason = _text(error)
        log.debug("nats_error", reason=_text(error))

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a task that reads or writes. If the socket broke, nats-py may not call `_on_closed`."""
        failure = None if task.cancelled() else task.exception()
        if failure is not None and self.reason == "closed":
            self.reason = str(failure) or type(failure).__name__
        self._end()

    async def _on_closed(self) -> None:
        if self.client.last_error is not None and not self._given_up:
            self.reason = _text(self.client.last_error)
        self._end()


class translate_errors:  # noqa: N801 - used like a function
    """A context manager that raises an error of this package instead of an exception of nats-py."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, (nats.errors.Error, OSError)):
            raise translate(error) from error


def translate(error: Exception) -> RebaserError:
    """Return the error of this package for an exception of nats-py, or for an `OSError`."""
    if isinstance(error, nats.errors.MaxPayloadError):
        text = "the message is larger than the NATS server accepts (max_payload): split it into smaller messages"
        return UnprocessableError(text, code="too_large")
    if isinstance(error, nats.errors.BadSubjectError):
        text = (
            "the subject is empty, or has a space, an unprintable character, an empty token (`a..b`), or a `>` before"
            " its end"
        )
        return UnprocessableError(text, code="invalid_subject")
    if isinstance(
        error,
        (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError, nats.errors.OutboundBufferLimitError),
    ):
        return NotConnectedError("the connection to NATS is down: try again after the client has reconnected")
    return TransientError(f"NATS: {_text(error)}")


def _missing(error: ImportError) -> str:
    return error.name or ("aiohttp" if "aiohttp" in str(error) else str(error))


def _text(error: BaseException) -> str:
    return (str(error) or type(error).__name__).removeprefix("nats: ")
