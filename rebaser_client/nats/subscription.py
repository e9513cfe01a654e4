"""A subject somebody listens on, through the links that come and go.

Invariant: an interest that was closed is listened on by no link, also if one was just taking it up.
"""

from collections.abc import Callable
from typing import Protocol

from nats.aio.subscription import Subscription

from rebaser_client.errors import NotAllowed
from rebaser_client.logs import get_logger
from rebaser_client.nats.link import Link
from rebaser_client.nats.parser import Handler, Sized
from rebaser_core.errors import RebaserError

log = get_logger(__name__)


class Registry(Protocol):
    """Who knows which interests there are: the connection."""

    def wants(self, interest: "Interest", /) -> bool: ...

    def forget(self, interest: "Interest", /) -> None: ...


class Interest:
    """A subject listened on. `lasting` ones come back by themselves with a new link.

    `denied` is called when NATS does not let us listen, or not publish to `asks`, on which the messages are asked
    for.
    """

    __slots__ = ("_asks", "_at", "_denied", "_registry", "handler", "lasting", "subject")

    def __init__(
        self,
        registry: Registry,
        subject: str,
        handler: Handler | Sized,
        lasting: bool,
        *,
        denied: Callable[[NotAllowed], None] | None = None,
        asks: str | None = None,
    ) -> None:
        self.subject = subject
        self.handler = handler
        self.lasting = lasting
        self._denied = denied
        self._asks = asks
        self._registry = registry
        self._at: tuple[Link, Subscription] | None = None

    def is_at(self, link: Link) -> bool:
        return self._at is not None and self._at[0] is link

    def hear(self, error: NotAllowed) -> bool:
        """Pass `error` on if it is about this interest; whether somebody was told."""
        if self._denied is None or error.subject != (self._asks if error.operation == "publish" else self.subject):
            return False
        self._denied(error)
        return True

    async def attach(self, link: Link) -> None:
        subscription = await link.subscribe(self.subject, self.handler)
        if not self._registry.wants(self):  # closed meanwhile
            await link.unsubscribe(subscription)
        elif link.up:
            self._at = link, subscription

    async def close(self) -> None:
        """Stop listening. Never fails: without a connection there is nothing to stop."""
        await self._end(drain=False)

    async def drain(self) -> None:
        """Stop listening, and return when the handler has seen everything that was on its way."""
        await self._end(drain=True)

    async def _end(self, *, drain: bool) -> None:
        self._registry.forget(self)
        at, self._at = self._at, None
        if at is not None:
            link, subscription = at
            try:
                await (link.drain(subscription) if drain else link.unsubscribe(subscription))
            except RebaserError as error:
                log.debug("unsubscribe_failed", subject=self.subject, reason=error.message)
