"""Sends API calls and acknowledgements for all parts of the JetStream layer.

Invariant: at most `MAX_CALLS` API calls of this process are in flight, because nats-server drops its whole queue of API
calls once the queue has 10,000 entries.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from anyio.lowlevel import RunVar
from pydantic_core import from_json

from rebaser_client.jetstream.errors import ApiError
from rebaser_client.jetstream.messages import Message
from rebaser_client.nats.connection import Connection
from rebaser_client.nats.messages import Msg
from rebaser_core.errors import TransientError

MAX_CALLS = 256  # the maximum number of API calls in flight


class CallSlots(asyncio.Semaphore):
    """A semaphore that limits the API calls in flight to `MAX_CALLS`. `taken` is the number of calls in flight."""

    @property
    def taken(self) -> int:
        return MAX_CALLS - self._value


_calls: RunVar[CallSlots] = RunVar("jetstream_calls")


class ApiCalls:
    """The base class of `JetStreamApi`: API calls and acknowledgements over `connection`.

    The methods raise the errors that `JetStream` documents. `timeout` (seconds) is the default timeout of the calls.
    """

    def __init__(self, connection: Connection, *, domain: str | None = None, timeout: float = 5.0) -> None:
        self.connection = connection
        domain = domain or connection.domain
        self.prefix = f"$JS.{domain}.API." if domain else "$JS.API."
        self._timeout = timeout

    # -- acknowledgements ------------------------------------------------------------------------------------------

    # If `confirmed` is true, these methods wait for the server's confirmation, for at most the default timeout.

    async def ack(self, message: Message) -> None:
        """Acknowledge the message as done. The server sends no confirmation."""
        await self.connection.publish(message.reply, b"+ACK")

    async def ack_sync(self, message: Message, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - see Connection.request
        """Acknowledge the message as done. Return when the server has confirmed that it will not deliver it again."""
        await self.connection.request(message.reply, b"+ACK", timeout=timeout or self._timeout)

    async def nak(self, message: Message, delay: float = 0.0, *, confirmed: bool = False) -> None:
        """Ask the server to deliver the message again, to any client, after `delay` seconds."""
        body = b'-NAK {"delay":%d}' % int(delay * 1e9) if delay > 0 else b"-NAK"
        await self._acknowledge(message, body, confirmed=confirmed)

    async def progress(self, message: Message, *, confirmed: bool = False) -> None:
        """Tell the server that work on the message continues, which restarts the ack wait of the message."""
        await self._acknowledge(message, b"+WPI", confirmed=confirmed)

    async def progress_all(self, messages: Iterable[Message]) -> None:
        """Tell the server that work on each of `messages` continues. This is much faster than many calls of
        `progress`."""
        if not self.connection.publish_all([(message.reply, b"+WPI") for message in messages]):
            await self.connection.flush()

    async def term(self, message: Message, reason: str = "", *, confirmed: bool = False) -> None:
        """Tell the server never to deliver the message again."""
        await self._acknowledge(message, f"+TERM {reason}".strip().encode(), confirmed=confirmed)

    async def _acknowledge(self, message: Message, body: bytes, *, confirmed: bool) -> None:
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
        """Call the API and return the answer. `subject` does not include the API prefix. Raise `ApiError` if the server
        refuses the call."""
        payload = b"" if body is None else json.dumps(body).encode()
        async with call_slot():
            message = await self.connection.request(self.prefix + subject, payload, timeout=timeout or self._timeout)
        return parse_answer(message)

    async def pages(
        self, subject: str, name: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Call the API once for each page of a list, and yield the entries. `name` is the field that contains the list
        in each answer."""
        offset = 0
        while True:
            answer = await self.call(subject, {**(body or {}), "offset": offset})
            page = answer.get(name) or []
            for entry in page:
                yield entry
            offset += len(page)
            if not page or offset >= answer.get("total", 0):
                return


def call_slot() -> CallSlots:
    """Return the semaphore that a caller holds while its API call is in flight."""
    try:
        return _calls.get()
    except LookupError:
        calls = CallSlots(MAX_CALLS)
        _calls.set(calls)
        return calls


def parse_answer(message: Msg) -> dict[str, Any]:
    """Parse an answer of the API. Raise `ApiError` if the server refused the call."""
    try:
        content = from_json(message.data)  # this runs for every publish, and takes a fifth of the time of json.loads
    except ValueError:
        content = None
    if type(content) is not dict:
        raise TransientError(
            f"the answer on {message.subject} is not from JetStream: check that no other program answers its API calls",
            code="jetstream",
        )
    error = content.get("error")
    if error:
        raise ApiError(error.get("code", 0), error.get("err_code", 0), str(error.get("description", "")))
    return content
