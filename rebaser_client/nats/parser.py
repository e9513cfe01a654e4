"""Parses the server's byte stream (docs.nats.io, "Client Protocol") and calls the handler of each message.

Invariant: no subject, headers or payload of a message can prevent the next message from being parsed. The parser of
nats-py does not guarantee that: a subject with a vertical tab, or with a byte that is not UTF-8, ends nats-py's read
loop, and a stream redelivers such a message endlessly. The parser of nats-py also takes twice as long.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, final

from nats.errors import ProtocolError

from rebaser_client.logs import get_logger
from rebaser_client.nats.messages import parse_headers, text

log = get_logger(__name__)

Handler: TypeAlias = Callable[[str, str, bytes, dict[str, str] | None], None]
"""A function that is called in the read loop with the subject, the reply subject, the payload and the headers of a
message. It must be quick and must not block."""


@final
class SizedHandler:
    """A handler with a fifth argument: the size of the message in bytes, as the server counts it towards `max_bytes`.

    The size includes the subject, the reply subject, the encoded headers, and the payload.
    """

    __slots__ = ("handle",)

    def __init__(self, handle: Callable[[str, str, bytes, dict[str, str] | None, int], None]) -> None:
        self.handle = handle


@final
class RawHandler:
    """A handler that gets the raw headers, empty if there are none. It calls `parse_headers` if it needs them."""

    __slots__ = ("handle",)

    def __init__(self, handle: Callable[[str, str, bytes, bytes], None]) -> None:
        self.handle = handle


AnyHandler: TypeAlias = Handler | SizedHandler | RawHandler

MAX_LINE = 1024 * 1024  # the maximum length of a line in bytes; an INFO line lists all servers of a cluster


class ControlHandler(Protocol):
    """The receiver of everything that the server sends except messages. The nats-py client implements this protocol."""

    async def on_ping(self) -> None: ...

    async def on_pong(self) -> None: ...

    async def on_error(self, text: str) -> None: ...

    async def on_info(self, info: dict[str, Any]) -> None: ...


class ProtocolParser:
    """The parser of one connection, which replaces the parser of nats-py. The nats-py client calls `parse` and `reset`.

    `handlers` contains the handlers of the messages, by subscription id, written as in the stream.
    """

    def __init__(self, client: ControlHandler) -> None:
        self.handlers: dict[bytes, AnyHandler] = {}
        self.reads = 0  # calls of `parse`
        self.pongs = 0
        self._client = client
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0

    def reset(self) -> None:
        """Forget a partial message, because a new connection begins."""
        self._chunks.clear()
        self._have = self._need = 0

    def handle(self, subscription_id: int, handler: AnyHandler) -> None:
        """Call `handler` for each message of a subscription."""
        self.handlers[b"%d" % subscription_id] = handler

    def forget(self, subscription_id: int) -> None:
        """Remove the handler of a subscription, so that its further messages are dropped."""
        self.handlers.pop(b"%d" % subscription_id, None)

    async def parse(self, data: bytes = b"") -> None:
        """Parse the next bytes of the stream. Raise `ProtocolError` for bytes that no NATS server sends."""
        self.reads += 1
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        end = len(data)
        start = 0
        self._need = 0
        while start < end:
            eol = data.find(b"\r\n", start)
            if eol < 0:
                if end - start > MAX_LINE:
                    raise ProtocolError
                break
            begin = eol + 2
            words = data[start:eol].split(b" ")
            verb = words[0]
            if verb == b"HMSG" or verb == b"MSG":  # noqa: PLR1714 - a tuple would be built for each message
                try:
                    stop = begin + int(words[-1])
                    if stop < begin:
                        raise ProtocolError  # a negative size would make the parser go backwards, and never end
                    if stop + 2 > end:
                        self._need = stop + 2 - start
                        break
                    self._on_message(words, data, begin, stop)
                except (ValueError, IndexError):
                    raise ProtocolError from None
                start = stop + 2
            else:
                await self._on_control(data[start:eol])
                start = begin
        if start < end:
            self._chunks.append(data[start:])
        self._have = end - start

    def _on_message(self, words: list[bytes], data: bytes, begin: int, stop: int) -> None:
        """Handle `MSG subject sid [reply] size` or `HMSG subject sid [reply] header-size size`."""
        handler = self.handlers.get(words[2])
        if handler is None:
            int(words[2])  # raises the error for a line that no server sends
            return
        body = begin
        raw_headers = b""
        words_with_reply = 5
        if words[0] == b"HMSG":
            body += int(words[-2])
            if not begin <= body <= stop:
                raise ValueError("the headers end outside of their message")
            raw_headers = data[begin:body]
            words_with_reply = 6
        raw_reply = words[3] if len(words) == words_with_reply else b""
        try:
            subject, reply = words[1].decode(), raw_reply.decode()
        except UnicodeDecodeError:  # `text` takes longer
            subject, reply = text(words[1]), text(raw_reply)
        payload = data[body:stop]
        try:
            if type(handler) is RawHandler:
                handler.handle(subject, reply, payload, raw_headers)
                return
            headers = parse_headers(raw_headers) if raw_headers else None
            if type(handler) is SizedHandler:
                size = stop - begin + len(words[1]) + len(raw_reply)
                handler.handle(subject, reply, payload, headers, size)
            else:
                handler(subject, reply, payload, headers)
        except Exception:
            # If the exception escaped, nats-py's read loop would end silently.
            log.exception("nats_handler_failed", subject=subject[:120])

    async def _on_control(self, line: bytes) -> None:
        client = self._client
        if line.startswith(b"PING"):
            await client.on_ping()
        elif line.startswith(b"PONG"):
            self.pongs += 1
            await client.on_pong()
        elif line.startswith(b"-ERR"):
            await client.on_error(text(line[5:]))
        elif line.startswith(b"INFO "):
            try:
                info = json.loads(line[5:])
            except (ValueError, RecursionError):
                raise ProtocolError from None
            if not isinstance(info, dict):
                raise ProtocolError
            await client.on_info(info)
        elif line and not line.startswith(b"+OK"):
            raise ProtocolError
