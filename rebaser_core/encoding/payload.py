"""Decodes and encodes payloads in CBOR and JSON. All bytes from outside the process are decoded here.

Invariant: `loads` returns a value that any JSON reader can represent, or raises `UnprocessableError`, but no other
exception. The time and memory that it needs are proportional to the size of the payload.
"""

import json
import math
from collections import defaultdict
from enum import StrEnum
from io import SEEK_CUR, BytesIO
from typing import Any, NoReturn

import cbor2

from rebaser_core.errors import UnprocessableError
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.values import INT64_MAX, INT64_MIN

# The maximum number of nested arrays and maps around a value in a message. The depth of the value itself
# (`Limits.max_depth`) is not included.
FRAME_DEPTH = 8

_KEPT = 64 * 1024  # bytes of the longest payload whose memory is kept for the next one
# Decoders that no thread uses at the moment, each with its source, by their maximum depth.
_idle: defaultdict[int, list[tuple[BytesIO, cbor2.CBORDecoder]]] = defaultdict(list)


class ContentType(StrEnum):
    """The format of a payload: CBOR (RFC 8949), which is the default, or JSON (RFC 8259)."""

    CBOR = "application/cbor"
    JSON = "application/json"

    @classmethod
    def of(cls, text: str) -> "ContentType":
        """Return the content type for the MIME type `text`. Case and parameters (`; charset=utf-8`) are ignored.

        Raise `UnprocessableError` if the MIME type is neither `application/cbor` nor `application/json`.
        """
        found = _CONTENT_TYPES.get(text) or _CONTENT_TYPES.get(text.partition(";")[0].strip().lower())
        if found is None:
            raise UnprocessableError(
                f"the content type {text[:80]!r} is not supported: use {' or '.join(cls)}",
                code="unsupported_content_type",
            )
        return found


_CONTENT_TYPES = {str(content_type): content_type for content_type in ContentType}
CBOR, JSON = ContentType.CBOR, ContentType.JSON


def loads(
    content_type: ContentType, payload: bytes, limits: Limits = DEFAULT_LIMITS, *, checked: bool = True
) -> object:
    """Decode the JSON value that `payload` contains as CBOR or JSON.

    Tags, byte strings, NaN, duplicate keys, indefinite lengths, and bytes after the value are refused. Raise
    `UnprocessableError` with code `too_large` (`payload` is longer than `max_request_bytes`), `too_deep` (more than
    `max_depth` + `FRAME_DEPTH` nested arrays and maps) or `malformed`. If `checked` is false, CBOR is not checked with
    `check_tree`, so the result may contain anything that `check_tree` refuses.
    """
    if len(payload) > limits.max_request_bytes:
        raise UnprocessableError(
            f"the payload has {len(payload)} bytes; at most {limits.max_request_bytes} are allowed", code="too_large"
        )
    if content_type is CBOR:
        value, end = read_first(payload, limits)
        if checked:
            check_tree(value)
        if end != len(payload):
            raise malformed(f"{len(payload) - end} unexpected bytes follow the message")
        return value
    return _loads_json(payload, limits)


def dumps(content_type: ContentType, value: object) -> bytes:
    """Encode `value`. Equal values are always encoded to equal bytes.

    If the value comes from a program, the caller must first check it with `check_json`, because cbor2 encodes
    recursively, so a few thousand nested lists would crash the process. Raise `UnprocessableError` if `value` cannot be
    encoded.
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
    """Return the CBOR head, which precedes a text, an array or another item of the type `major`.

    `length` is the number of bytes, elements or entries that follow (see "head" in RFC 8949, section 3).
    """
    out = BytesIO()
    cbor2.CBOREncoder(out).encode_length(major, length)
    return out.getvalue()


def read_head(source: BytesIO, major: int) -> int:
    """Read a CBOR head (RFC 8949, section 3), which must have the type `major`, and return the length that it contains.

    Raise `UnprocessableError` if the head is missing or invalid, or has another type.
    """
    first = source.read(1)
    if not first or first[0] >> 5 != major:
        raise malformed(f"the CBOR data has no {_NAMES[major]} in a place that requires one")
    short = first[0] & 31
    if short < 24:
        return short
    length = 1 << (short - 24)
    argument = source.read(length)
    if short > 27 or len(argument) != length:
        raise malformed("the CBOR data ends within the length of an item, or contains an item of indefinite length")
    return int.from_bytes(argument)


def read_item(source: BytesIO, limits: Limits) -> object:
    """Read and return the next item of a CBOR sequence (RFC 8742). The position of `source` is then after the item.

    The item is checked as strictly as by `loads`, and the same errors are raised.
    """
    value = read_unchecked(source, limits)
    check_tree(value)
    return value


def read_items(source: BytesIO, count: int, limits: Limits) -> list[Any]:
    """Read the next `count` items of a CBOR sequence with a single call of cbor2.

    The result is the same as from `count` calls of `read_item`, but takes about half the time. At least 9 bytes of
    `source` must precede the items. Raise `UnprocessableError` if `read_item` would raise it for any of the items, or
    if an item has the maximum depth. After an error, the position of `source` is undefined.
    """
    # To make cbor2 read the items as one list, the head of a list is written in front of them, over bytes that have
    # already been read.
    frame = head(LIST, count)
    source.seek(-len(frame), SEEK_CUR)
    source.write(frame)
    source.seek(-len(frame), SEEK_CUR)
    items: list[Any] = read_item(source, limits)  # type: ignore[assignment] # the item is a list, because of the head
    return items


def write_items(items: list[Any]) -> bytes:
    """Encode `items` as a CBOR sequence, with a single call of cbor2."""
    return dumps(CBOR, items)[len(head(LIST, len(items))) :]


def read_unchecked(source: BytesIO, limits: Limits) -> object:
    """Read and return the next item of a CBOR sequence, like `read_item`, but without calling `check_tree`.

    The item may therefore contain byte strings, simple values, NaN, and integers of more than 64 bits.
    """
    depth = limits.max_depth + FRAME_DEPTH
    try:
        return _decoder(source, depth).decode()
    except cbor2.CBORDecodeError as error:
        raise _invalid_cbor(error, depth) from None


def read_first(payload: bytes, limits: Limits) -> tuple[object, int]:
    """Return the first item in `payload`, unchecked as by `read_unchecked`, and the number of bytes that it takes.

    The decoder and its source are used again, because making them takes a sixth of the time for a small message.
    """
    depth = limits.max_depth + FRAME_DEPTH
    idle = _idle[depth]
    try:
        source, decoder = idle.pop()  # no other thread gets the same one
    except IndexError:
        source = BytesIO()
        decoder = _decoder(source, depth)
    source.seek(0)
    source.write(payload)
    source.truncate()
    source.seek(0)
    try:
        item = decoder.decode()
    except cbor2.CBORDecodeError as error:  # the decoder may still hold bytes, so it is not used again
        raise _invalid_cbor(error, depth) from None
    end = source.tell()
    if len(payload) <= _KEPT:
        idle.append((source, decoder))
    return item, end


def _decoder(source: BytesIO, depth: int) -> cbor2.CBORDecoder:
    return cbor2.CBORDecoder(
        source,
        tag_hook=_refuse_tag,
        semantic_decoders=_REFUSED_TAGS,
        max_depth=depth,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        # A hostile sender could choose keys that are not text and have equal hashes. Inserting them into a dict would
        # take quadratic time.
        strict_hashable_types=True,
    )


def _invalid_cbor(error: cbor2.CBORDecodeError, depth: int) -> UnprocessableError:
    if "nesting depth" in str(error):
        return UnprocessableError(f"the payload is nested deeper than {depth} levels", code="too_deep")
    return malformed(f"the CBOR data is not valid: {str(error.__cause__ or error)[:200]}")


def malformed(message: str) -> UnprocessableError:
    return UnprocessableError(message, code="malformed")


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("CBOR tags are not allowed")


# The tags that cbor2 decodes by itself; it passes all other tags to `tag_hook`. They are refused before their content
# is decoded, because merely decoding a hostile number, regular expression or reference can do harm.
_REFUSED_TAGS = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799), _refuse_tag
)


def check_tree(value: object, *, surrogates: bool = False) -> None:  # noqa: C901, PLR0912 - one flat loop, for speed
    """Raise `UnprocessableError` (code `malformed`) if `value` contains anything that JSON cannot represent.

    If `surrogates` is true, texts are also checked for lone surrogates.
    """
    todo: list[Any] = [(value,)]
    while todo:
        node = todo.pop()
        if type(node) is dict:
            for key in node:
                if type(key) is not str:
                    raise malformed("the data contains a map with a key that is not text")
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
                if not -math.inf < item < math.inf:  # this is also false for NaN
                    raise malformed("the data contains a number that is not finite")
            elif kind is int:
                if not INT64_MIN <= item <= INT64_MAX:
                    raise malformed("the data contains an integer that does not fit in 64 bits")
            elif kind is not bool and item is not None:
                raise malformed(f"the data contains an item of the type {kind.__name__}, which JSON does not have")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise malformed("the data contains a lone surrogate, which is not valid Unicode text") from None


def _loads_json(payload: bytes, limits: Limits) -> object:
    depth = limits.max_depth + FRAME_DEPTH
    if payload.count(b"[") + payload.count(b"{") > depth:
        _check_json_depth(payload, depth)
    try:
        value = _JSON_DECODER.decode(payload.decode())
    except ValueError as error:
        raise malformed(f"the JSON text is not valid: {str(error)[:200]}") from None
    check_tree(value, surrogates=b"\\u" in payload)
    return value


def _check_json_depth(payload: bytes, depth: int) -> None:
    """Raise `UnprocessableError` if the JSON text is nested deeper than `depth`. This takes linear time.

    The JSON decoder is recursive, so deeply nested text must not reach it. The decoder itself detects all other errors.
    """
    bare = payload.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_STRUCTURE)
    level = 0
    for outside in bare.split(b'"')[::2]:
        for char in outside:
            level += 1 if char in b"[{" else -1
            if level > depth:
                raise UnprocessableError(f"the payload is nested deeper than {depth} levels", code="too_deep")


_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))


def _json_int(text: str) -> int:
    if len(text) > 20:  # `int` takes quadratic time for long texts
        raise ValueError("an integer does not fit in 64 bits")
    return int(text)


def _json_float(text: str) -> float:
    if len(text) > 1100:  # no double needs that many characters
        raise ValueError("a number has more than 1100 characters")
    return float(text)


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a map has the same key twice")
    return value


_JSON_DECODER = json.JSONDecoder(object_pairs_hook=_json_object, parse_int=_json_int, parse_float=_json_float)
