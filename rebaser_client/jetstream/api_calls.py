"""Calls of the JetStream API, and acknowledgements: what streams, consumers and messages have in common.

Invariant: at most `MAX_CALLS` API calls of this process are in flight: a server drops its whole queue at 10,000.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from anyio.lowlevel import RunVar
from pydantic_core import from_json

from rebaser_client.jetstream.errors import ApiError
from rebaser_client.jetstream.messages import Message
from rebaser_client.nats.connection import Connection
from rebaser_client.nats.messages import Msg
from rebaser_core.errors import TransientError

MAX_CALLS = 256

_calls: RunVar[asyncio.Semaphore] = RunVar("jetstream_calls")


class ApiCalls:
    """See `JetStream`, whose foundation this is."""

    def __init__(self, connection: Connection, *, domain: str | None = None, timeout: float = 5.0) -> None:
        self.connection = connection
        self.prefix = f"$JS.{domain}.API." if domain else "$JS.API."
        self._timeout = timeout

    # -- acknowledgements ------------------------------------------------------------------------------------------

    # With `confirmed`, the server's answer is awaited, for at most the timeout of all calls.

    async def ack(self, message: Message) -> None:
        """Done. Nobody confirms it."""
        await self.connection.publish(message.reply, b"+ACK")

    async def ack_sync(self, message: Message, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as below
        """Done, confirmed: the server will not deliver it again."""
        await self.connection.request(message.reply, b"+ACK", timeout=timeout or self._timeout)

    async def nak(self, message: Message, delay: float = 0.0, *, confirmed: bool = False) -> None:
        """Have it delivered again, to anybody, after `delay` seconds."""
        body = b'-NAK {"delay":%d}' % int(delay * 1e9) if delay > 0 else b"-NAK"
        await self._say(message, body, confirmed=confirmed)

    async def progress(self, message: Message, *, confirmed: bool = False) -> None:
        """Still at work: begin the ack wait anew."""
        await self._say(message, b"+WPI", confirmed=confirmed)

    async def term(self, message: Message, reason: str = "", *, confirmed: bool = False) -> None:
        """Never deliver it again."""
        await self._say(message, f"+TERM {reason}".strip().encode(), confirmed=confirmed)

    async def _say(self, message: Message, body: bytes, *, confirmed: bool) -> None:
        if confirmed:
            await self.connection.request(message.reply, body, timeout=self._timeout)
        else:
            await self.connection.publish(message.reply, body)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(
        self,
        subject: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - see Connection.request
    ) -> dict[str, Any]:
        """One API call; `subject` without the API's prefix."""
        payload = b"" if body is None else json.dumps(body).encode()
        async with call_slot():
            message = await self.connection.request(self.prefix + subject, payload, timeout=timeout or self._timeout)
        return parse_answer(message)

    async def pages(
        self, subject: str, name: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """What the API lists under `name`, page after page."""
        offset = 0
        while True:
            found = await self.call(subject, {**(body or {}), "offset": offset})
            page = found.get(name) or []
            for one in page:
                yield one
            offset += len(page)
            if not page or offset >= found.get("total", 0):
                return


def call_slot() -> asyncio.Semaphore:
    """To be held while a call is in flight."""
    try:
        return _calls.get()
    except LookupError:
        calls = asyncio.Semaphore(MAX_CALLS)
        _calls.set(calls)
        return calls


def parse_answer(message: Msg) -> dict[str, Any]:
    """What the API says; raises `ApiError` for a refusal."""
    try:
        content = from_json(message.data)  # as json.loads, at a fifth of the cost: one stands in each publish
    except ValueError:
        content = None
    if type(content) is not dict:
        raise TransientError(f"the answer on {message.subject} is not JetStream's", code="jetstream")
    error = content.get("error")
    if error:
        raise ApiError(error.get("code", 0), error.get("err_code", 0), str(error.get("description", "")))
    return content
