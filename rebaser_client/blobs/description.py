"""The descriptions of blobs in NATS, in the layout of its object store (ADR-20).

Invariant: `Description.read` returns only a description that has the hash of the address, so it describes that blob.
"""

import base64
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeGuard

from rebaser_client.blobs.store import BlobCorrupt
from rebaser_client.jetstream.messages import StoredMessage

MAX_DESCRIPTION = 64 * 1024  # bytes; descriptions by Rebaser have a few hundred
TRASH = "rebaser-trash"  # in the metadata of the description of a blob in the trash, which is marked as deleted

_NUID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a blob, published under the address of the blob, with its stream sequence and the time when it
    was stored.

    `trashed` tells whether the blob is in the trash. Its chunks are still stored.
    """

    raw: dict[str, Any]
    nuid: str
    size: int
    chunks: int
    sequence: int
    stored: float  # Unix time
    trashed: bool

    @classmethod
    def read(cls, address: str, sequence: int, stored: float, data: bytes) -> "Description | None":
        """Read the description of the blob at `address`; None if it was deleted. Raises `BlobCorrupt`."""
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
        """Return the description that the blob has outside of the trash."""
        kept = {name: value for name, value in self.raw.items() if name not in ("deleted", "metadata")}
        return json.dumps(kept | {"mtime": datetime.now(UTC).isoformat()}).encode()

    def in_trash(self) -> bytes:
        """Return the description that the blob has in the trash. To other clients of the bucket, the blob
        is deleted."""
        return json.dumps(self.raw | {"deleted": True, "metadata": {TRASH: "1"}}).encode()


def stored_at(stored: StoredMessage) -> float:
    """Return the Unix time at which a message was stored; 0 if the server gave no time."""
    return datetime.fromisoformat(stored.time).timestamp() if stored.time else 0.0


def digest_of(address: str) -> str:
    """Return the hash in `address`, in the form that descriptions use."""
    return "SHA-256=" + base64.urlsafe_b64encode(bytes.fromhex(address.partition(":")[2])).decode()


def _is_description(raw: Any) -> TypeGuard[dict[str, Any]]:
    return (
        type(raw) is dict
        and type(raw.get("nuid")) is str
        and _NUID.fullmatch(raw["nuid"]) is not None
        and type(raw.get("digest")) is str
        and all(type(raw.get(name)) is int and raw[name] >= 0 for name in ("size", "chunks"))
    )
