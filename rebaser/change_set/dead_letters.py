"""Copies of requests that cannot be processed, with the reason in their headers.

Invariant: the copy is confirmed before the original is answered and deleted, so a dead request is always in one of the
two streams. The original's `Nats-*` headers are renamed: copied as they are, they would make the stream refuse it.
"""

import re

from rebaser_client.blobs import BlobStore
from rebaser_client.jetstream import JetStream, Message
from rebaser_core.commit import Decision
from rebaser_core.envelope import MESSAGE_ID
from rebaser_core.ids import ChangeSetKey
from rebaser_core.subjects import Subjects

_HEADER_NAME = re.compile(r"[!-9;-~]{1,128}")
MAX_HEADERS = 64
MAX_HEADER_VALUE = 1024  # characters
HEADER_ROOM = 64 * 1024  # bytes of a message that are left to its headers


class DeadLetters:
    """Writes to the dead letters of one installation, as server `server_id`."""

    def __init__(self, js: JetStream, subjects: Subjects, blobs: BlobStore, server_id: str) -> None:
        self._js = js
        self._subjects = subjects
        self._blobs = blobs
        self._server_id = server_id

    async def bury(self, key: ChangeSetKey, message: Message, decision: Decision, at_ms: int) -> None:
        """Store the copy and await its ack; raises `TransientError` if it could not be stored for now."""
        headers = dead_headers(message.headers, decision)
        headers |= {
            "X-Original-Subject": clean(message.subject),
            "X-Server": clean(self._server_id),
            "X-Dead-At-Ms": str(at_ms),
            MESSAGE_ID: f"{key}.{clean(decision.request_id)}@{decision.sequence}",
        }
        data = message.data
        if len(data) + HEADER_ROOM > self._js.connection.max_payload:
            headers["X-Payload-Address"] = await self._blobs.put(data)
            data = b""
        await self._js.publish(self._subjects.dlq(key), data, headers)


def dead_headers(original: dict[str, str] | None, decision: Decision) -> dict[str, str]:
    """Headers of the copy: the reason, and the original's under names that have no meaning to NATS."""
    headers: dict[str, str] = {}
    for name, value in list((original or {}).items())[:MAX_HEADERS]:
        if _HEADER_NAME.fullmatch(name):
            headers[f"X-Original-{name}" if name.lower().startswith("nats-") else name] = clean(value)
    return headers | {
        "X-Reason-Code": clean(decision.code),
        "X-Reason": clean(decision.message),
        "X-Request-Id": clean(decision.request_id),
        "X-Original-Sequence": str(decision.sequence),
    }


def clean(text: str) -> str:
    """`text` as a header value can carry it: printable ASCII, bounded."""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:MAX_HEADER_VALUE]).strip()
