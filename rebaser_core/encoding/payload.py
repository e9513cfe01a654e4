"""Decodes and encodes payloads in CBOR and JSON. All bytes from outside the process are decoded here.

Invariant: `loads` returns a value that any JSON reader can hold, or raises `UnprocessableError` and no other exception.
Its time and memory are proportional to the payload.
"""

import json
import math
from enum import StrEnum
from io import SEEK_CUR, BytesIO
from typing import Any, NoReturn

import cbor2

from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.values import INT64_MAX, INT64_MIN

# `Limits.max_depth` bounds a value; a message may nest it in this many further arrays and maps.
FRAME_DEPTH = 8


class ContentType(StrEnum):
    """The format of a payload: CBOR (RFC 8949), or JSON (RFC 8259) if the sender chooses it."""

    CBOR = "application/cbor"
    JSON = "application/json"

    @classmethod
    def of(cls, text: str) -> "ContentType":
        """Return the content type that a MIME type names. Its case and its parameters (`; charset=utf-8`) are ignored.

        Raises `UnprocessableError` for any other.
        """
        found = _CONTENT_TYPES.get(text) or _CONTENT_TYPES.get(text.partition(";")[0].strip().lower())
        if found is None:
            raise UnprocessableError(f"unsupported content type {text[:80]!r}", code="unsupported_content_type")
        return found


_CONTENT_TYPES = {str(content_type): content_type for content_type in ContentType}
CBOR, JSON = ContentType.CBOR, ContentType.JSON


def loads(content_type: ContentType, payload: bytes, limits: Limits = DEFAULT_LIMITS) -> object:
    """Decode the JSON value in `payload`.

    Refuses tags, byte strings, NaN, duplicate keys, indefinite lengths, and bytes after the value. Raises
    `UnprocessableError` with code `too_large` (payload longer than `max_request_bytes`), `too_deep` (more than
    `max_depth` + `FRAME_DEPTH` nested containers) or `malformed`.
    """
    if len(payload) > limits.max_request_bytes:
        raise UnprocessableError(
            f"the payload has {len(payload)} bytes; at most {limits.max_request_bytes} are allowed", code="too_large"
        )
    if content_type is CBOR:
        source = BytesIO(payload)
        value = read_item(source, limits)
        if source.tell() != len(payload):
            raise malformed(f"{len(payload) - source.tell()} bytes follow the message")
        return value
    return _loads_json(payload, limits)


def dumps(content_type: ContentType, value: object) -> bytes:
    """Encode `value`, always to the same bytes for the same value; raises `UnprocessableError` if it cannot be encoded.

    A value from a program must have passed `check_json` before. cbor2 encodes recursively, so a few thousand nested
    lists would crash the process.
    """
    try:
        if content_type is CBOR:
            return cbor2.dumps(value)
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (cbor2.CBOREncodeError, TypeError, ValueError, RecursionError) as error:
        raise UnprocessableError(f"the value cannot be encoded: {str(error)[:200]}", code="invalid_value") from None


BYTES, TEXT, LIST, MAP = 2, 3, 4, 5  # CBOR major types
_NAMES = {BYTES: "byte string", TEXT: "text", LIST: "array", MAP: "map"}


def head(major: int, length: int) -> bytes:
    """Return the CBOR head (RFC 8949, section 3) in front of `length` bytes, items or entries."""
    out = BytesIO()
    cbor2.CBOREncoder(out).encode_length(major, length)
    return out.getvalue()


def read_head(source: BytesIO, major: int) -> int:
    """Read a head (RFC 8949, section 3) of type `major`; returns its argument."""
    first = source.read(1)
    if not first or first[0] >> 5 != major:
        raise malformed(f"the CBOR has no {_NAMES[major]} where one must be")
    short = first[0] & 31
    if short < 24:
        return short
    length = 1 << (short - 24)
    argument = source.read(length)
    if short > 27 or len(argument) != length:
        raise malformed("the CBOR ends within a length, or has an indefinite one")
    return int.from_bytes(argument)


def read_item(source: BytesIO, limits: Limits) -> object:
    """Read the next item of a CBOR sequence (RFC 8742), as strictly as `loads`; leaves `source` just after the item."""
    value = read_unchecked(source, limits)
    check_tree(value)
    return value


def read_items(source: BytesIO, count: int, limits: Limits) -> list[Any]:
    """Read the next `count` items of a CBOR sequence in a single call. At least 9 bytes of `source` must precede them.

    Returns what `count` calls of `read_item` return, in about half of their time. Raises `UnprocessableError` if one of
    those calls would raise it, and also if an item has the maximum depth. After an error, the position of `source` is
    undefined.
    """
    # The items become one list: its head overwrites bytes that have been read already.
    frame = head(LIST, count)
    source.seek(-len(frame), SEEK_CUR)
    source.write(frame)
    source.seek(-len(frame), SEEK_CUR)
    items: list[Any] = read_item(source, limits)  # type: ignore[assignment] # the head says so
    return items


def write_items(items: list[Any]) -> bytes:
    """Encode `items` as a CBOR sequence, in a single call."""
    return dumps(CBOR, items)[len(head(LIST, len(items))) :]


def read_unchecked(source: BytesIO, limits: Limits) -> object:
    """Do what `read_item` does, without `check_tree`. So leaves may be byte strings, simple values, NaN or large
    integers."""
    depth = limits.max_depth + FRAME_DEPTH
    try:
        return cbor2.load(
            source,
            tag_hook=_refuse_tag,
            semantic_decoders=_REFUSED_TAGS,
            max_depth=depth,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            # A sender could choose keys of other types that collide in a dict, which costs quadratic time.
            strict_hashable_types=True,
        )
    except cbor2.CBORDecodeError as error:
        if "nesting depth" in str(error):
            raise UnprocessableError(f"the payload is nested deeper than {depth} levels", code="too_deep") from None
        raise malformed(f"cannot read the CBOR: {str(error.__cause__ or error)[:200]}") from None


def malformed(message: str) -> UnprocessableError:
    return UnprocessableError(message, code="malformed")


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("CBOR tags are not allowed")


# Tags that cbor2 decodes itself (its `decode_semantic`); it passes all others to `tag_hook`. A tag is refused before
# its content is decoded, because decoding a number, a pattern or a reference can itself be the attack.
_REFUSED_TAGS = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799), _refuse_tag
)


def check_tree(value: object, *, surrogates: bool = False) -> None:  # noqa: C901, PLR0912 - one flat loop, for speed
    """Refuse values that a decoder accepts but JSON lacks. `surrogates` tells whether to look for lone surrogates in
    text.

    Raises `UnprocessableError` (`malformed`). Iterative, although the decoder has bounded the depth.
    """
    todo: list[Any] = [(value,)]
    while todo:
        node = todo.pop()
        if type(node) is dict:
            for key in node:
                if type(key) is not str:
                    raise malformed("a map key is not text")
                if surrogates:
                    _check_text(key)
            node = node.values()
        for item in node:
            kind = type(item)
            if kind is str:
                if surrogates:
                    _check_text(item)
            elif kind is dict or kind is list:
                todo.append(item)
            elif kind is float:
                if not -math.inf < item < math.inf:  # false for NaN too
                    raise malformed("a number is not finite")
            elif kind is int:
                if not INT64_MIN <= item <= INT64_MAX:
                    raise malformed("an integer does not fit in 64 bits")
            elif kind is not bool and item is not None:
                raise malformed(f"{kind.__name__} is not a JSON value")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise malformed("text holds a lone surrogate") from None


def _loads_json(payload: bytes, limits: Limits) -> object:
    depth = limits.max_depth + FRAME_DEPTH
    if payload.count(b"[") + payload.count(b"{") > depth:
        _check_json_depth(payload, depth)
    try:
        value = _JSON_DECODER.decode(payload.decode())
    except ValueError as error:
        raise malformed(f"cannot read the JSON: {str(error)[:200]}") from None
    check_tree(value, surrogates=b"\\u" in payload)
    return value


def _check_json_depth(payload: bytes, depth: int) -> None:
    """Refuse deep nesting before the recursive decoder runs. Takes linear time; leaves other faults to the decoder."""
    bare = payload.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_STRUCTURE)
    level = 0
    for outside in bare.split(b'"')[::2]:
        for char in outside:
            level += 1 if char in b"[{" else -1
            if level > depth:
                raise UnprocessableError(f"the payload is nested deeper than {depth} levels", code="too_deep")


_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))


def _json_int(text: str) -> int:
    if len(text) > 20:  # int() of a long literal costs quadratic time
        raise ValueError("an integer does not fit in 64 bits")
    return int(text)


def _json_float(text: str) -> float:
    if len(text) > 1100:  # more digits than any double has
        raise ValueError("a number has more than 1100 characters")
    return float(text)


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a map has the same key twice")
    return value


_JSON_DECODER = json.JSONDecoder(object_pairs_hook=_json_object, parse_int=_json_int, parse_float=_json_float)
