"""Sends requests to the ops port, as a probe or a scraper does."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio


@dataclass(frozen=True)
class Answer:
    status: int
    head: str
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(port: int, path: str, *, method: str = "GET", head: str = "") -> Answer:
    """Send one request, and read until the server closes the connection. `head` holds additional header lines."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"{method} {path} HTTP/1.1\r\nhost: probe\r\n{head}\r\n".encode())
        answer = b""
        with anyio.fail_after(60):
            async for chunk in stream:
                answer += chunk
    first, _, body = answer.decode().partition("\r\n\r\n")
    return Answer(int(first.split(" ")[1]), first.lower(), body)


async def until(port: int, path: str, status: int, text: str = "") -> Answer:
    """Repeat a request until the answer has this status, and `text` in its body. At the first attempts, the port
    may not be open yet, or have no room for connections."""
    with anyio.fail_after(120):
        while True:
            with suppress(OSError, IndexError, anyio.BrokenResourceError):
                answer = await ask(port, path)
                if answer.status == status and text in answer.body:
                    return answer
            await anyio.sleep(0.05)
