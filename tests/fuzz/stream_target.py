"""A fuzz target for the byte stream of NATS."""

from contextlib import suppress
from typing import Any

from nats.errors import ProtocolError

from rebaser_client.jetstream.messages import Message
from rebaser_client.nats.header_lines import encode_headers
from rebaser_client.nats.parser import ProtocolParser
from rebaser_core.errors import UnprocessableError
from tests.fuzz.mutate import Mutator

STREAM = (
    b"INFO {\"server_id\":\"x\",\"max_payload\":1048576}\r\nPING\r\nPONG\r\n+OK\r\n"
    b"MSG a.b 7 5\r\nhello\r\nMSG a.b 7 reply.to 0\r\n\r\nHMSG a.b 7 $JS.ACK.s.c.1.2.3.4.5 12 17\r\n"
    b"NATS/1.0\r\n\r\nhello\r\n"
    b"HMSG a 7 30 30\r\nNATS/1.0 503 No Responders\r\n\r\n\r\n-ERR 'Slow Consumer'\r\n"
)  # fmt: skip


class ControlHandler:
    """Stands in for nats-py's client, whose handlers the reader calls."""

    async def on_ping(self) -> None: ...

    async def on_pong(self) -> None: ...

    async def on_error(self, text: str) -> None:
        text.encode()

    async def on_info(self, info: object) -> None: ...


def make_stream(mutator: Mutator) -> bytes:
    return mutator.damaged(STREAM, (STREAM,))


def check_stream(data: bytes) -> None:
    """Check that the same messages are read from the stream however it is cut into pieces."""
    found = []
    for size in (len(data) or 1, max(11, len(data) // 200)):
        got: list[object] = []

        def handle(
            subject: str, reply: str, body: bytes, headers: dict[str, str] | None, got: list[object] = got
        ) -> None:
            got.append((subject, reply, body, headers))
            with suppress(ValueError):
                Message(subject, reply, body, headers)
            with suppress(UnprocessableError):
                encode_headers(headers or {})

        reader = ProtocolParser(ControlHandler())
        reader.handle(7, handle)
        try:
            for at in range(0, len(data), size):
                _run(reader.parse(data[at : at + size]))
        except ProtocolError:
            pass
        found.append(got)
    assert all(one == found[0] for one in found)


def _run(work: Any) -> None:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("the reader waits")
