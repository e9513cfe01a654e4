"""A stand-in for nats-server in this process. It makes no system calls, and its time can be left out of a figure.

It answers the API calls of owners of empty change sets, and delivers requests to them. It stores nothing and refuses
nothing.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rebaser_client.nats import nats_py
from rebaser_core.encoding.envelope import MESSAGE_ID, REPLY_INBOX
from rebaser_core.ids import ChangeSetKey, RequestId, ulid
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.updates import Set

INBOX = "_INBOX.client0123456789"


class Transport(nats_py.SafeTransport):
    """A socket whose other end is `NatsHere`."""

    def __init__(self) -> None:
        super().__init__()
        self._incoming = bytearray(b'INFO {"version":"2.15.1","headers":true,"max_payload":1048576}\r\n')
        self._arrived = asyncio.Event()
        self.sent: list[bytes] = []

    def __bool__(self) -> bool:
        return True

    @property
    def is_drained(self) -> bool:
        return True

    async def connect(self, *_: object) -> None:
        NatsHere.transport = self

    def receive(self, data: bytes) -> None:
        self._incoming += data
        self._arrived.set()

    async def readline(self) -> bytes:
        line, _, rest = bytes(await self.read(1 << 16)).partition(b"\r\n")
        self._incoming[:0] = rest
        return line + b"\r\n"

    async def read(self, buffer_size: int) -> bytes:
        while not self._incoming:
            self._arrived.clear()
            await self._arrived.wait()
        data, self._incoming = bytes(self._incoming), bytearray()
        return data

    def write(self, payload: bytes) -> None:
        self.sent.append(payload)
        if payload.startswith(b"PING"):
            self.receive(b"PONG\r\n")

    def writelines(self, payload: list[bytes]) -> None:
        self.sent += payload

    async def drain(self) -> None: ...

    async def wait_closed(self) -> None: ...

    def close(self) -> None: ...

    def at_eof(self) -> bool:
        return False


class NatsHere:
    """Answers the API calls of owners of empty change sets, and delivers requests to them."""

    transport: Transport

    def __init__(self) -> None:
        if "transport" in vars(NatsHere):
            del NatsHere.transport  # that of an earlier one
        self.replies = 0
        self._subscriptions: dict[str, str] = {}  # id by subject
        self._consumers: dict[str, tuple[str, str]] = {}  # inbox and name by filter
        self._delivered = Counter[str]()
        self._sequence = 1000

    def respond(self) -> None:
        """Answer everything that was sent since the last call."""
        sent, self.transport.sent = b"".join(self.transport.sent), []
        answers = [answer for words, body in _commands(sent) if (answer := self._answer(words, body))]
        if answers:
            self.transport.receive(b"".join(answers))

    def _answer(self, words: list[str], body: bytes) -> bytes:
        verb, subject = words[:2] if len(words) > 1 else (words[0], "")
        reply = words[2] if len(words) > 2 else ""
        answer: dict[str, Any] = {"success": True}
        if verb == "PING":
            return b"PONG\r\n"
        if verb == "SUB":
            self._subscriptions[subject] = words[-1]
        if subject.startswith(INBOX):
            self.replies += 1
        if verb not in ("PUB", "HPUB") or not reply:
            return b""
        if subject.startswith("rebaser.commits."):
            self._sequence += 1
            answer = {"stream": "REBASER_COMMITS", "seq": self._sequence}
        elif ".STREAM.INFO." in subject:
            answer = {"config": {"name": "s"}, "created": "2026-01-01T00:00:00Z", "state": {"last_seq": 1000}}
        elif ".STREAM.MSG.GET." in subject:
            answer = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
        elif ".CONSUMER.CREATE." in subject:
            config = json.loads(body)["config"]
            self._consumers[config["filter_subject"]] = config["deliver_subject"], config["name"]
            answer = {"stream_name": "s", "name": config["name"], "config": config, "delivered": {}}
        inbox = next(known for known in self._subscriptions if known.endswith("*") and reply.startswith(known[:-1]))
        data = json.dumps(answer).encode()
        return f"MSG {reply} {self._subscriptions[inbox]} {len(data)}\r\n".encode() + data + b"\r\n"

    def delivery(self, key: ChangeSetKey) -> bytes:
        """Return the bytes with which a consumer delivers a request for `key`."""
        subject = f"rebaser.requests.{key}"
        inbox, consumer = self._consumers[subject]
        self._delivered[subject] += 1
        self._sequence += 1
        now = time.time_ns()
        request_id = RequestId(ulid(now // 1_000_000, os.urandom(10)))
        request = EnqueueUpdatesRequest(request_id, key.workspace, key.change_set, (Set("n", 1),))
        headers, payload = encode(request)
        headers |= {MESSAGE_ID: f"{key}.{request_id}", REPLY_INBOX: f"{INBOX}.{self._sequence}"}
        block = "".join(["NATS/1.0\r\n", *(f"{name}: {value}\r\n" for name, value in headers.items()), "\r\n"])
        reply = f"$JS.ACK.s.{consumer}.1.{self._sequence}.{self._delivered[subject]}.{now}.0"
        sizes = f"{len(block)} {len(block) + len(payload)}"
        return f"HMSG {subject} {self._subscriptions[inbox]} {reply} {sizes}\r\n{block}".encode() + payload + b"\r\n"


def _commands(sent: bytes) -> Iterator[tuple[list[str], bytes]]:
    at = 0
    while at < len(sent):
        end = sent.index(b"\r\n", at)
        words = sent[at:end].decode().split(" ")
        at = end + 2
        if words[0] in ("PUB", "HPUB"):
            size = int(words[-1])
            yield words[: -1 if words[0] == "PUB" else -2], sent[at : at + size]
            at += size + 2
        else:
            yield words, b""
