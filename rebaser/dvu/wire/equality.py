"""Whether a derived value came out as it was.

Invariant: "the same" is that of `rebaser_core.values.same`, though of what stood there only a digest may be at hand.
"""

import hashlib
import math

from rebaser.dvu.wire.column import Digest, Item
from rebaser_core.values import Json, canonical

_SHORT = 24  # characters of a text that is no longer than its digest


def unchanged(old: Item, value: Json) -> bool:
    """Whether `value` is what stood there, given as the value itself or its digest."""
    kind = type(value)
    if kind is float:
        return type(old) is float and old == value and (value != 0 or math.copysign(1, old) == math.copysign(1, value))
    if kind is int or kind is bool or value is None or (kind is str and type(old) is str):
        return type(old) is kind and old == value
    return type(old) is Digest and old.raw == digest(canonical(value))


def baseline(value: Json) -> Item:
    """A value as `unchanged` needs it: what is small as it is, the rest as a digest."""
    if value is None or isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _SHORT):
        return value
    return Digest(digest(canonical(value)))


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def fault_digest(code: str, message: str) -> Digest:
    """A fault that names no other value, as `old` carries it."""
    return Digest(digest(f"fault {code} {message}".encode()))
