"""Determines whether a derived value is the same as before an update.

Invariant: this module gives the same answers as `rebaser_core.values.same`, even if it has only a digest of the
previous value.
"""

import hashlib
import math

from rebaser.dvu.wire.column import Digest, Item
from rebaser_core.values import Json, canonical

_SHORT = 24  # maximum characters of a text that is compared as it is, because a digest would be no smaller


def unchanged(old: Item, value: Json) -> bool:
    """Return whether `value` equals the previous value. `old` is the previous value itself, or its digest."""
    kind = type(value)
    if kind is float:
        return type(old) is float and old == value and (value != 0 or math.copysign(1, old) == math.copysign(1, value))
    if kind is int or kind is bool or value is None or (kind is str and type(old) is str):
        return type(old) is kind and old == value
    return type(old) is Digest and old.raw == digest(canonical(value))


def baseline(value: Json) -> Item:
    """Return the item to pass to `unchanged` as `old` if `value` is the previous value. The item is `value` itself if
    it is small, otherwise its digest."""
    if value is None or isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _SHORT):
        return value
    return Digest(digest(canonical(value)))


def digest(data: bytes) -> bytes:
    """Return the hash of `data`: the 16 bytes of a `Digest`."""
    return hashlib.blake2b(data, digest_size=16).digest()


def fault_digest(code: str, message: str) -> Digest:
    """Return the digest that represents the previous fault of a node in a packet, if the message of the fault mentions
    no other value."""
    return Digest(digest(f"fault {code} {message}".encode()))
