"""Determines whether a derived value is the same as before an update.

Invariant: "the same" is as in `rebaser_core.values.same`, even if only a digest of the previous value is known.
"""

import hashlib
import math

from rebaser.dvu.wire.column import Digest, Item
from rebaser_core.values import Json, canonical

_SHORT = 24  # characters: a text of this length takes no more bytes than its digest


def unchanged(old: Item, value: Json) -> bool:
    """Return whether `value` equals the previous value, of which `old` is the value itself or its digest."""
    kind = type(value)
    if kind is float:
        return type(old) is float and old == value and (value != 0 or math.copysign(1, old) == math.copysign(1, value))
    if kind is int or kind is bool or value is None or (kind is str and type(old) is str):
        return type(old) is kind and old == value
    return type(old) is Digest and old.raw == digest(canonical(value))


def baseline(value: Json) -> Item:
    """Return the form of `value` that `unchanged` takes as `old`: a small value itself, or the digest of a
    larger one."""
    if value is None or isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _SHORT):
        return value
    return Digest(digest(canonical(value)))


def digest(data: bytes) -> bytes:
    """Return the 16 bytes that a `Digest` of `data` holds."""
    return hashlib.blake2b(data, digest_size=16).digest()


def fault_digest(code: str, message: str) -> Digest:
    """Return the form in which a packet carries the previous fault of a node, if the fault names no other value."""
    return Digest(digest(f"fault {code} {message}".encode()))
