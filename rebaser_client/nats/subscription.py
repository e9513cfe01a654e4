"""Subscriptions of a `Connection`, which outlive the links that carry them.

Invariant: no link delivers to a subscription that was closed, even if the link was subscribing at that moment.
"""

from collections.abc import Callable
from typing import Protocol, Self

import anyio

from rebaser_client.logs import get_logger
from rebaser_client.nats.errors import NotAllowed
from rebaser_client.nats.link import Link
from rebaser_client.nats.messages import Msg
from rebaser_client.nats.parser import AnyHandler
from rebaser_core.errors import RebaserError

log = get_logger(__name__)


class Subscriptions(Protocol):
    """The registry of open subscriptions. `Connection` implements it."""

    def has_subscription(self, subscription: "Subscription", /) -> bool: ...

    def forget_subscription(self, subscription: "Subscription", /) -> None: ...


class Subscription:
    """A subscription to a subject, with the handler of its messages. A `lasting` subscription survives a reconnect.

    `on_denied` is called when NATS refuses the subscription, or refuses publishes to `request_subject`, the subject on
    which the client requests the messages of this subscription.
    """

    __slots__ = ("_attached", "_on_denied", "_request_subject", "_subscriptions", "handler", "lasting", "subject")

    def __init__(
        self,
        subscriptions: Subscriptions,
        subject: str,
        handler: AnyHandler,
        lasting: bool,
        *,
        on_denied: Callable[[NotAllowed], None] | None = None,
        request_subject: str | None = None,
    ) -> None:
        self.subject = subject
        self.handler = handler
        self.lasting = lasting
        self._on_denied = on_denied
        self._request_subject = request_subject
        self._subscriptions = subscriptions
        self._attached: tuple[Link, int] | None = None

    def is_attached(self, link: Link) -> bool:
        """Return whether `link` delivers messages to this subscription."""
        return self._attached is not None and self._attached[0] is link

    def report_denial(self, error: NotAllowed) -> bool:
        """Call `on_denied` if `error` concerns this subscription. Return whether `on_denied` was called."""
        denied_subject = self._request_subject if error.operation == "publish" else self.subject
        if self._on_denied is None or error.subject != denied_subject:
            return False
        self._on_denied(error)
        return True

    async def attach(self, link: Link) -> None:
        """Subscribe on `link`. Raise `NotConnectedError` if the link breaks."""
        subscription_id = await link.subscribe(self.subject, self.handler)
        if not self._subscriptions.has_subscription(self):  # the subscription was closed meanwhile
            await link.unsubscribe(subscription_id)
        elif link.up:
            self._attached = link, subscription_id

    async def close(self) -> None:
        """Unsubscribe. Without a connection, this does nothing."""
        await self._end(drain=False)

    async def drain(self) -> None:
        """Unsubscribe, and wait until the handler has been called for every message in transit."""
        await self._end(drain=True)

    async def _end(self, *, drain: bool) -> None:
        self._subscriptions.forget_subscription(self)
        attached, self._attached = self._attached, None
        if attached is not None:
            link, subscription_id = attached
            try:
                await (link.drain(subscription_id) if drain else link.unsubscribe(subscription_id))
            except RebaserError as error:
                log.debug("unsubscribe_failed", subject=self.subject, reason=error.message)


class MessageIterator:
    """The iterator that `Connection.subscribe` yields. A read that is cancelled loses no message.

    At most `max_pending` messages wait for the reader; further messages are dropped, and a warning is logged.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._send, self._received = anyio.create_memory_object_stream[Msg](max_pending)
        self._denied: NotAllowed | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send.close()
        self._received.close()

    def handle(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        """Queue a message. This method is a `Handler`."""
        try:
            self._send.send_nowait(Msg(subject, reply, data, headers))
        except anyio.WouldBlock:
            log.warning("message_dropped", subject=subject, pending=self._max_pending)
        except anyio.ClosedResourceError:
            pass  # the server denied a part of the subject, but still delivers messages on the other part

    def deny(self, error: NotAllowed) -> None:
        """End the iteration with `error` after the waiting messages."""
        self._denied = error
        self.end()

    def end(self) -> None:
        """End the iteration after the waiting messages."""
        self._send.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Msg:
        try:
            return await self._received.receive()
        except anyio.EndOfStream:
            if self._denied is not None:
                raise self._denied from None
            raise StopAsyncIteration from None
