"""A pulled message with methods that acknowledge it."""

from rebaser_client.jetstream.api_calls import ApiCalls
from rebaser_client.jetstream.messages import Message


class PullMessage(Message):
    """A delivered message that the reader has to acknowledge. The methods of `JetStream` with the same names document
    each kind of acknowledgement."""

    __slots__ = ("_js",)

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None, js: ApiCalls) -> None:
        super().__init__(subject, reply, data, headers)
        self._js = js

    async def ack(self) -> None:
        await self._js.ack(self)

    async def ack_sync(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - see Connection.request
        await self._js.ack_sync(self, timeout=timeout)

    async def nak(self, delay: float = 0.0, *, confirmed: bool = False) -> None:
        await self._js.nak(self, delay, confirmed=confirmed)

    async def progress(self, *, confirmed: bool = False) -> None:
        await self._js.progress(self, confirmed=confirmed)

    async def term(self, reason: str = "", *, confirmed: bool = False) -> None:
        await self._js.term(self, reason, confirmed=confirmed)
