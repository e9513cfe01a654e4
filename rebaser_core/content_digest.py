"""A digest of what a request asks for. It distinguishes a resent request from a different request with the same id.

Invariant: the same updates have the same digest, whether they came as CBOR or JSON, in the message or in a blob, and
whatever the order of the keys in their maps.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from rebaser_core.updates import Derive, Recompute, Set, Unset, Update
from rebaser_core.values import Json, canonical

SIZE: Final = 8  # bytes; a sender who searches for a collision only harms its own requests


def digest_of(updates: Sequence[Update], from_change_set: str | None, recompute: Recompute | None) -> bytes:
    """The digest of a request's content."""
    parts = [_bytes_of(update) for update in updates]
    if from_change_set is not None:
        parts.append(b"from" + canonical(from_change_set))
    if recompute is not None:
        parts.append(b"recompute" + canonical(recompute.to_wire()))
    return hashlib.blake2b(b"".join(parts), digest_size=SIZE).digest()


def _bytes_of(update: Update) -> bytes:
    """Encode one update. Each part includes its length, so no update is a prefix of another."""
    id_ = update.id.encode()
    if type(update) is Set:
        return b"set%d:%b" % (len(id_), id_) + canonical(update.value)
    if type(update) is Derive:  # the order of inputs matters, that of parameters does not
        wire = update.to_wire()
        inputs: list[Json] = [[name, source] for name, source in wire["inputs"].items()]
        return b"derive" + canonical([update.id, update.function, inputs, wire["params"]])
    return (b"unset%d:%b" if type(update) is Unset else b"remove%d:%b") % (len(id_), id_)
