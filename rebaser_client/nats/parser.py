"""Takes the server's byte stream apart (docs.nats.io, "Client Protocol") and hands each message to its handler.

Invariant: whatever a publisher put into subject, headers or payload, the next message is read all the same. nats-py's
own parser does not keep that: a subject with a byte that is not UTF-8, or with a vertical tab, ends its read loop, and
such a message stands in a stream and comes again. It also takes twice as long.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from nats.errors import ProtocolError

from rebaser_client.logs import get_logger
from rebaser_client.nats.messages import parse_headers, text

log = get_logger(__name__)

Handler: TypeAlias = Callable[[str, str, bytes, dict[str, str] | None], None]
"""Called in the read loop with subject, reply, data, headers. Must be quick and must not wait."""


class SizedHandler:
    """A handler that is told, as a fifth argument, the size of each message as a server counts it for `max_bytes`:

    subject, reply, headers as they came, payload.
    """

    __slots__ = ("handle",)

    def __init__(self, handle: Callable[[str, str, bytes, dict[str, str] | None, int], None]) -> None:
        self.handle = handle


MAX_LINE = 1024 * 1024  # bytes of a line; INFO names all servers of a cluster


class ControlHandler(Protocol):
    """Who is told what is no message: the client."""

    async def on_ping(self) -> None: ...

    async def on_pong(self) -> None: ...

    async def on_error(self, text: str) -> None: ...

    async def on_info(self, info: dict[str, Any]) -> None: ...


class ProtocolParser:
    """Stands in for nats-py's parser: `parse` and `reset` are called by its client."""

    def __init__(self, client: ControlHandler) -> None:
        self.handlers: dict[int, Handler] = {}
        self.sized: dict[int, SizedHandler] = {}
        self.reads = 0  # pieces of the stream that came, whatever was in them
        self.pongs = 0
        self._client = client
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0

    def reset(self) -> None:
        """Forget what came: another connection begins."""
        self._chunks.clear()
        self._have = self._need = 0

    def forget(self, number: int) -> None:
        """Nobody listens on the subscription `number` any more."""
        self.handlers.pop(number, None)
        self.sized.pop(number, None)

    async def parse(self, data: bytes = b"") -> None:
        """Read what has come; raises `ProtocolError` for what no server sends."""
        self.reads += 1
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        end = len(data)
        at = 0
        self._need = 0
        while at < end:
            eol = data.find(b"\r\n", at)
            if eol < 0:
                if end - at > MAX_LINE:
                    raise ProtocolError
                break
            begin = eol + 2
            verb = data[at : at + 4]
            if verb == b"HMSG" or verb == b"MSG ":  # noqa: PLR1714 - a tuple would be built for each message
                words = data[at:eol].split(b" ")
                try:
                    stop = begin + int(words[-1])
                    if stop < begin:
                        raise ProtocolError  # going back, it would be read for ever
                    if stop + 2 > end:
                        self._need = stop + 2 - at
                        break
                    self._on_message(words, data, begin, stop)
                except (ValueError, IndexError):
                    raise ProtocolError from None
                at = stop + 2
            else:
                await self._on_control(data[at:eol])
                at = begin
        if at < end:
            self._chunks.append(data[at:])
        self._have = end - at

    def _on_message(self, words: list[bytes], data: bytes, begin: int, stop: int) -> None:
        """`MSG subject sid [reply] size`, or `HMSG subject sid [reply] header-size size`."""
        number = int(words[2])
        handler = self.handlers.get(number)
        sized = None if handler is not None else self.sized.get(number)
        if handler is None and sized is None:
            return
        body = begin
        headers = None
        with_reply = 5
        if words[0] == b"HMSG":
            body += int(words[-2])
            if not begin <= body <= stop:
                raise ValueError("headers end outside of their message")
            headers = parse_headers(data[begin:body])
            with_reply = 6
        subject = words[1].decode("utf-8", "replace")
        reply = words[3].decode("utf-8", "replace") if len(words) == with_reply else ""
        try:
            if handler is not None:
                handler(subject, reply, data[body:stop], headers)
            elif sized is not None:
                size = stop - begin + len(words[1]) + (len(words[3]) if reply else 0)
                sized.handle(subject, reply, data[body:stop], headers, size)
        except Exception:
            # Out of here it would end nats-py's read loop without a word.
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
