"""A subject somebody listens on, through the links that come and go.

Invariant: an interest that was closed is listened on by no link, also if one was just taking it up.
"""

from typing import Protocol

from nats.aio.subscription import Subscription

from rebaser_client.jetstream.link import Link
from rebaser_client.jetstream.reader import Handler, Sized
from rebaser_client.logs import get_logger
from rebaser_core.errors import RebaserError

log = get_logger(__name__)


class Registry(Protocol):
    """Who knows which interests there are: the connection."""

    def wants(self, interest: "Interest", /) -> bool: ...

    def forget(self, interest: "Interest", /) -> None: ...


class Interest:
    """A subject listened on. `lasting` ones come back by themselves with a new link."""

    __slots__ = ("_at", "_registry", "handler", "lasting", "subject")

    def __init__(self, registry: Registry, subject: str, handler: Handler | Sized, lasting: bool) -> None:
        self.subject = subject
        self.handler = handler
        self.lasting = lasting
        self._registry = registry
        self._at: tuple[Link, Subscription] | None = None

    def is_at(self, link: Link) -> bool:
        return self._at is not None and self._at[0] is link

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
