"""Damages valid examples: bytes, texts, and trees of JSON values. The same seed gives the same damage."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import cbor2

NUMBERS = (
    0,
    -1,
    1,
    23,
    24,
    255,
    256,
    65535,
    2**31,
    2**32 - 1,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**64,
    10**400,
)
FLOATS = (0.0, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 0.1)
TEXTS = (
    "", " ", "\x00", "\n", "\r\n", "\t", "\u2028", "\ufeff", "\ud800", "\U0001f600", "é", "٣", "a" * 513, "a" * 5000,
    "../../x",
    "**", "match", "a**/*b*c",
    "*", ">", ".", "a.b", "$JS.API.INFO", "_INBOX.a", "v1", "v2", "v99999999999", "set", "derive", "sha256:" + "0" * 64,
    "main", "ann", "open", "deleted", "theirs", "manual",
)  # fmt: skip
PIECES = (
    b"\r\n", b"\x00", b"\xff", b"\x80", b"[", b"{", b"]", b"}", b'"', b"\\u", b"\\ud800", b",", b":", b"1e999", b"NaN",
    b"-",
    b"\x9f", b"\xbf", b"\x7f", b"\x5f", b"\xf7", b"\xf9\x7e\x00", b"\xfb\x7f\xf0\x00\x00\x00\x00\x00\x00",
    b"\xc2\x41\x01",
    b"\xc4\x82\x1b\x7f\xff\xff\xff\xff\xff\xff\xff\x01", b"\xd8\x1c\x81\xd8\x1d\x00", b"\xd8\x23\x61(",
    b"\xd9\x01\x02\x80",
    b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff", b"\xbb\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x5b\x00\x00\x00\x7f\xff\xff\xff\xff",
    b"\xef\xbb\xbf", b"NATS/1.0", b"MSG ", b"HMSG ", b"PING", b"INFO ", b"-ERR", b" 99999999999999999999 ", b" -1 ",
)  # fmt: skip
MAX_BYTES = 200_000


class Mutator:
    """Damages examples. All its choices come from `chance`."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._many = 2  # how often an element of a list is repeated at most

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    # -- bytes -----------------------------------------------------------------------------------------------------

    def damaged(self, data: bytes, others: Sequence[bytes] = ()) -> bytes:
        """Return `data` with a few bytes changed, moved, doubled, inserted or removed."""
        out = bytearray(data)
        for _ in range(self.chance.choice((1, 1, 1, 2, 3, 8))):
            self._damage(out, others)
        return bytes(out[:MAX_BYTES])

    def _damage(self, out: bytearray, others: Sequence[bytes]) -> None:
        chance = self.chance
        at = chance.randint(0, len(out))
        until = min(len(out), at + chance.choice((1, 1, 2, 4, 16, 64)))
        match chance.randrange(9):
            case 0 if out:
                out[at % len(out)] ^= 1 << chance.randrange(8)
            case 1 if out:
                out[at % len(out)] = chance.randrange(256)
            case 2:
                out[at:at] = chance.randbytes(chance.choice((1, 2, 4, 9)))
            case 3:
                out[at:at] = chance.choice(PIECES)
            case 4:
                del out[at:until]
            case 5:
                del out[at:]
            case 6:
                out[at:at] = out[at:until] * chance.choice((1, 2, 50, 1000))
            case 7 if others:
                other = chance.choice(others)
                start = chance.randint(0, len(other))
                out[at:until] = other[start : start + chance.choice((4, 16, 256))]
            case _:
                out[at:at] = chance.choice((b"[", b"\x81", b"(", b"{", b"\xa1a")) * chance.choice((3, 100, 20_000))

    # -- trees -----------------------------------------------------------------------------------------------------

    def tree(self, value: Any) -> Any:
        """Return a copy of `value` with one or a few nodes replaced, doubled, renamed or removed."""
        # Only once for each tree: four nested repetitions would give thousands of millions of elements.
        self._many = 300
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            value = self._node(value)
        return value

    def _node(self, value: Any) -> Any:
        chance = self.chance
        if isinstance(value, dict) and value and self.often(0.8):
            key = chance.choice(list(value))
            made = dict(value)
            match chance.randrange(8):
                case 0:
                    del made[key]
                case 1:
                    made[self.key()] = made.pop(key)
                case 2:
                    made[self.key()] = self.leaf()
                case _:
                    made[key] = self._node(made[key])
            return made
        if isinstance(value, (list, tuple)) and value and self.often(0.8):
            items = list(value)
            at = chance.randrange(len(items))
            match chance.randrange(6):
                case 0:
                    del items[at]
                case 1:
                    times = chance.choice((1, 2, self._many))
                    self._many = 2 if times == self._many else self._many
                    items[at:at] = [items[at]] * times
                case 2:
                    items.append(self.leaf())
                case _:
                    items[at] = self._node(items[at])
            return items
        return self._other(value)

    def _other(self, value: Any) -> Any:
        chance = self.chance
        match chance.randrange(6):
            case 0:
                for _ in range(chance.choice((1, 3, 63, 64, 65, 80, 300))):
                    value = [value] if self.often(0.5) else {"a": value}
                return value
            case 1 if isinstance(value, str):
                return self.text(value)
            case 2 if isinstance(value, int):
                return value + chance.choice((-1, 1, 2**62))
            case 3:
                return {self.key(): self.leaf() for _ in range(chance.randrange(4))}
            case _:
                return self.leaf()

    def key(self) -> Any:
        names = (
            *("op", "id", "value", "function", "inputs", "params", "updates", "updatesAddress", "v1", "v2", "status"),
            *("from", "at", "target", "upto", "onto", "settles", "keep", "protected", "first", "last", "of", "expect"),
        )
        return self.chance.choice(names) if self.often(0.7) else self.leaf_of(TEXTS, NUMBERS)

    def leaf(self) -> Any:
        special = (  # type: ignore[var-annotated]
            None,
            True,
            False,
            [],
            {},
            b"bytes",
            cbor2.undefined,
            cbor2.CBORTag(2, b"\xff" * 9),
            cbor2.CBORSimpleValue(99),
        )
        return self.leaf_of(NUMBERS, FLOATS, TEXTS, TEXTS, special)

    def leaf_of(self, *kinds: Sequence[Any]) -> Any:
        return self.chance.choice(self.chance.choice(kinds))

    # -- text ------------------------------------------------------------------------------------------------------

    def text(self, text: str, words: Sequence[str] = TEXTS) -> str:
        chance = self.chance
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randint(0, len(text))
            until = min(len(text), at + chance.choice((1, 2, 5)))
            match chance.randrange(5):
                case 0:
                    text = text[:at] + text[until:]
                case 1:
                    text = (
                        text[:at]
                        + chr(chance.choice((chance.randrange(128), chance.randrange(0x11000))))
                        + text[until:]
                    )
                case 2:
                    text = text[:at] + text[at:until] * chance.choice((2, 30)) + text[until:]
                case _:
                    text = text[:at] + chance.choice(words) + text[until:]
        return text[:MAX_BYTES]


def as_cbor(value: Any) -> bytes:
    """Return `value` as CBOR; what cannot be encoded becomes null."""
    return _tried(lambda: cbor2.dumps(value))


def _tried(write: Callable[[], bytes]) -> bytes:
    try:
        return write()
    except (cbor2.CBOREncodeError, ValueError, TypeError, RecursionError):
        return b"\xf6"
