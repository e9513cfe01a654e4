"""The descriptions of blobs in NATS, in the layout of the NATS object store (ADR-20).

Invariant: `Description.read` returns a description only if it has the hash of the blob's address.
"""

import base64
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from rebaser_client.blobs.store import BlobCorrupt
from rebaser_client.jetstream.messages import StoredMessage

MAX_DESCRIPTION = 64 * 1024  # bytes; the descriptions that Rebaser writes have a few hundred bytes
TRASH = "rebaser-trash"  # a key in the metadata of the description of a blob in the trash

_NUID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a blob: a message whose subject contains the address of the blob.

    - `raw`: the content of the message. `nuid`: the unique id in the subject of the blob's chunks. `size`: the size of
      the blob in bytes.
    - `sequence` and `stored`: the stream sequence of the message, and the Unix time when it was stored.
    - `trashed`: whether the blob is in the trash. The chunks of such a blob are still stored.
    """

    raw: dict[str, Any]
    nuid: str
    size: int
    chunks: int
    sequence: int
    stored: float
    trashed: bool

    @classmethod
    def read(cls, address: str, sequence: int, stored: float, data: bytes) -> "Description | None":
        """Parse the description of the blob at `address`. Return None if the blob was deleted.

        Raise `BlobCorrupt` if the description is damaged.
        """
        try:
            raw = json.loads(data) if len(data) <= MAX_DESCRIPTION else None
        except (ValueError, RecursionError):
            raw = None
        deleted = type(raw) is dict and bool(raw.get("deleted"))
        metadata = raw.get("metadata") if type(raw) is dict else None
        trashed = deleted and type(metadata) is dict and TRASH in metadata
        if deleted and not trashed:
            return None
        if not _is_description(raw) or raw["digest"].lower() != digest_of(address).lower():
            raise BlobCorrupt(f"the description of blob {address} in NATS is damaged")
        return cls(raw, raw["nuid"], raw["size"], raw["chunks"], sequence, stored, trashed)

    def alive(self) -> bytes:
        """Return the payload of the description that the blob has outside of the trash."""
        kept = {name: value for name, value in self.raw.items() if name not in ("deleted", "metadata")}
        return json.dumps(kept | {"mtime": datetime.now(UTC).isoformat()}).encode()

    def in_trash(self) -> bytes:
        """Return the payload of the description that the blob has in the trash.

        NATS clients other than Rebaser treat a blob with this description as deleted.
        """
        return json.dumps(self.raw | {"deleted": True, "metadata": {TRASH: "1"}}).encode()


def stored_at(stored: StoredMessage) -> float:
    """Return the Unix time at which a message was stored; 0 if the server gave no time."""
    return datetime.fromisoformat(stored.time).timestamp() if stored.time else 0.0


def digest_of(address: str) -> str:
    """Return the hash in `address`, in the encoding that descriptions use."""
    return "SHA-256=" + base64.urlsafe_b64encode(bytes.fromhex(address.partition(":")[2])).decode()


def _is_description(raw: Any) -> TypeGuard[dict[str, Any]]:
    return (
        type(raw) is dict
        and type(raw.get("nuid")) is str
        and _NUID.fullmatch(raw["nuid"]) is not None
        and type(raw.get("digest")) is str
        and all(type(raw.get(name)) is int and raw[name] >= 0 for name in ("size", "chunks"))
    )
