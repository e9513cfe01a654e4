"""What a request asks for, as a few bytes, so that another one under the same id is told apart.

Invariant: the same for the same updates, however they travelled: in CBOR or JSON, in the message or in a blob, maps in
any order.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from rebaser_core.updates import Derive, Recompute, Set, Unset, Update
from rebaser_core.values import Json, canonical

SIZE: Final = 8  # bytes; no defence against who looks for two of the same, which is their own loss


def digest_of(updates: Sequence[Update], from_change_set: str | None, recompute: Recompute | None) -> bytes:
    """The digest of a request's content."""
    parts = [_bytes_of(update) for update in updates]
    if from_change_set is not None:
        parts.append(b"from" + canonical(from_change_set))
    if recompute is not None:
        parts.append(b"recompute" + canonical(recompute.to_wire()))
    return hashlib.blake2b(b"".join(parts), digest_size=SIZE).digest()


def _bytes_of(update: Update) -> bytes:
    """Bytes that begin no others: each part tells its length."""
    id_ = update.id.encode()
    if type(update) is Set:
        return b"set%d:%b" % (len(id_), id_) + canonical(update.value)
    if type(update) is Derive:  # the order of inputs means something, that of parameters does not
        wire = update.to_wire()
        inputs: list[Json] = [[name, given] for name, given in wire["inputs"].items()]
        return b"derive" + canonical([update.id, update.function, inputs, wire["params"]])
    return (b"unset%d:%b" if type(update) is Unset else b"remove%d:%b") % (len(id_), id_)
