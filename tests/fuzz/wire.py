"""A publisher that checks nothing, so that a server receives any bytes as a subject."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

import anyio
from anyio.abc import ByteStream

from rebaser_client.nats.header_lines import encode_headers
from rebaser_client.nats.link import translate_errors


class RawPublisher:
    """Speaks the necessary part of the NATS protocol. Answers go to the subscriber of the reply subject."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._sending = anyio.Lock()

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator[Self]:
        address = urlsplit(url)
        async with (
            await anyio.connect_tcp(address.hostname or "", address.port or 0) as stream,
            anyio.create_task_group() as group,
        ):
            await stream.receive()  # the INFO line
            await stream.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n')
            publisher = cls(stream)
            group.start_soon(publisher._read)
            yield publisher
            group.cancel_scope.cancel()

    async def publish(self, subject: bytes, payload: bytes, headers: Mapping[str, str], reply: str) -> None:
        """Send one message. Raises `UnprocessableError` for a header name that would end the connection."""
        with translate_errors():
            block = encode_headers(headers)
        size = len(block)
        line = b"HPUB %s %s %d %d\r\n" % (subject, reply.encode(), size, size + len(payload))
        async with self._sending:
            await self._stream.send(line + block + payload + b"\r\n")

    async def _read(self) -> None:
        """Answer pings, and ignore the errors about subjects that the server sends."""
        async for data in self._stream:
            if b"PING" in data:
                async with self._sending:
                    await self._stream.send(b"PONG\r\n")
