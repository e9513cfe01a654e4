"""Determines whether a derived value is the same as before an update.

Invariant: this module gives the same answers as `rebaser_core.values.same`, even if it has only a digest of the
previous value.
"""

import hashlib
import math

from rebaser.dvu.wire.column import Digest, Item
from rebaser_core.values import Json, canonical

_SHORT = 24  # characters of the longest text that is compared as it is: it takes no more bytes than its digest


def unchanged(old: Item, value: Json) -> bool:
    """Return whether `value` equals the previous value. `old` is the previous value itself, or its digest."""
    kind = type(value)
    if kind is float:
        return type(old) is float and old == value and (value != 0 or math.copysign(1, old) == math.copysign(1, value))
    if kind is int or kind is bool or value is None or (kind is str and type(old) is str):
        return type(old) is kind and old == value
    return type(old) is Digest and old.raw == digest(canonical(value))


def baseline(value: Json) -> Item:
    """Return the item that `unchanged` takes as `old` if `value` is the previous value: a small value as it is, or the
    digest of a larger value."""
    if value is None or isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _SHORT):
        return value
    return Digest(digest(canonical(value)))


def digest(data: bytes) -> bytes:
    """Return the hash of `data`: the 16 bytes of a `Digest`."""
    return hashlib.blake2b(data, digest_size=16).digest()


def fault_digest(code: str, message: str) -> Digest:
    """Return the digest with which a packet represents the previous fault of a node, if the fault names no other
    value."""
    return Digest(digest(f"fault {code} {message}".encode()))
