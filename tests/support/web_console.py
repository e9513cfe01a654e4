"""A console on a separate port, and requests to it as a browser or a program sends them."""

import json
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from rebaser.console import server
from rebaser.console.access.options import ConsoleOptions, accepted_hosts
from rebaser.console.access.rules import TokenAccess
from rebaser.console.answers import AnswerJson, ErrorJson
from rebaser.console.openapi import ACTS, READS
from rebaser.console.resources import match
from rebaser.ops.address import listen
from rebaser_client import RebaserClient

ACTING = {"content-type": "application/json", "x-rebaser-action": "1"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class WebConsole:
    """A console that listens at `port`."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        given = {"host": f"127.0.0.1:{self.port}", "connection": "close"} | dict(headers or {})
        if body:
            given["content-length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            await stream.send(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
            answer = b""
            with anyio.fail_after(60):
                async for chunk in stream:
                    answer += chunk
        head, _, content = answer.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        found = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
        return Reply(int(first.split(" ")[1]), found, content)

    async def get(self, path: str, status: int = 200) -> Any:
        """Return the JSON at a path of the API."""
        reply = await self.ask(f"/api/v1{path}")
        assert reply.status == status, reply.body
        check_answer(path, reply)
        return reply.json()

    async def act(self, path: str, body: object, status: int = 200) -> Any:
        reply = await self.ask(f"/api/v1{path}", method="POST", headers=ACTING, body=json.dumps(body).encode())
        assert reply.status == status, reply.body
        check_answer(path, reply, method="post")
        return reply.json()

    @asynccontextmanager
    async def live(self, of: str, headers: Mapping[str, str] | None = None) -> AsyncIterator["LiveEvents"]:
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            path = f"/api/v1/live?of={quote(of, safe='')}"
            lines = "".join(f"{name}: {value}\r\n" for name, value in dict(headers or {}).items())
            await stream.send(f"GET {path} HTTP/1.1\r\nhost: localhost:{self.port}\r\n{lines}\r\n".encode())
            yield LiveEvents(BufferedByteReceiveStream(stream))


def check_answer(path: str, reply: Reply, *, method: str = "get") -> None:
    """Raise `ValidationError` unless an answer is as the document of the API says."""
    model: type[AnswerJson] = ErrorJson
    if reply.status == 200:
        routes: dict[str, type[AnswerJson]] = {one: model for one, (model, _) in READS.items()}
        if method == "post":
            routes = {one: model for one, (_, model) in ACTS.items()}
        found = [model for one, model in routes.items() if match(one, urlsplit(path).path) is not None]
        if not found:
            return  # of the login
        [model] = found
    model.model_validate_json(reply.body, strict=True)


class LiveEvents:
    """The events of a live stream."""

    def __init__(self, stream: BufferedByteReceiveStream) -> None:
        self._stream = stream

    async def status(self) -> int:
        """Return the status of the answer. May be called once, before `next`."""
        with anyio.fail_after(60):
            return int((await self._stream.receive_until(b"\r\n", 1000)).split(b" ")[1])

    async def next(self) -> tuple[str, Any]:
        """Return the name of the next event, and its data."""
        name = ""
        with anyio.fail_after(60):
            while True:
                line = (await self._stream.receive_until(b"\n", 10_000_000)).decode().strip()
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    return name, json.loads(line.removeprefix("data: "))


def end_sessions(access: TokenAccess) -> None:
    """Let the time of all sessions be over."""
    for viewer in access._sessions.values():
        viewer.until = 0.0


def workspace() -> str:
    """Return the name of a workspace that no other test uses."""
    return f"t{secrets.token_hex(5)}"


@asynccontextmanager
async def web_console(
    nats_url: str, *, prefix: str = "", names: Collection[str] = (), **options: Any
) -> AsyncIterator[WebConsole]:
    """Serve a console with `options`, those of `ConsoleOptions`. `names` are additional hosts that it accepts."""

    def connect() -> AbstractAsyncContextManager[RebaserClient]:
        return RebaserClient.connect(nats_url, prefix=prefix)

    with closing(await listen("127.0.0.1:0")) as listener:
        port = listener.getsockname()[1]
        chosen = ConsoleOptions(accepted_hosts("127.0.0.1", port, names), **options)
        async with server.console(connect, listener, chosen, "0.0-test"):
            yield WebConsole(port)
