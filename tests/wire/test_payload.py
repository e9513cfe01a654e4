"""Payloads are read strictly, and in bounded time and memory."""

import json
import struct
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from email.mime.text import MIMEText
from fractions import Fraction
from ipaddress import ip_address, ip_network
from re import compile as pattern
from typing import Any
from uuid import UUID

import cbor2
import pytest

from rebaser_core.encoding.payload import CBOR, FRAME_DEPTH, JSON, ContentType, dumps, loads
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.limits import DEFAULT_LIMITS, Limits
from rebaser_core.messages import EnqueueUpdatesRequest, decode, encode
from rebaser_core.updates import Set

DEPTH = DEFAULT_LIMITS.max_depth + FRAME_DEPTH


def refused(content_type: ContentType, payload: bytes, limits: Limits = DEFAULT_LIMITS) -> UnprocessableError:
    with pytest.raises(UnprocessableError) as caught:
        loads(content_type, payload, limits)
    return caught.value


# -- both formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", ContentType)
def test_the_size_of_a_payload_is_checked_first(content_type: ContentType) -> None:
    assert refused(content_type, b"\xff" * 11, Limits(max_request_bytes=10)).code == "too_large"


@pytest.mark.parametrize("content_type", ContentType)
@pytest.mark.parametrize("shape", ["list", "map"])
def test_depth_is_bounded_and_the_bound_itself_is_allowed(content_type: ContentType, shape: str) -> None:
    value: Any = 1
    for _ in range(DEPTH):
        value = [value] if shape == "list" else {"k": value}
    assert loads(content_type, dumps(content_type, value)) == value
    assert refused(content_type, dumps(content_type, [value])).code == "too_deep"


@pytest.mark.parametrize("content_type", ContentType)
def test_a_value_as_deep_as_allowed_fits_into_a_request(content_type: ContentType) -> None:
    value: Any = 1
    for _ in range(DEFAULT_LIMITS.max_depth):
        value = [value]
    request = EnqueueUpdatesRequest(RequestId("r"), "w", "c", (Set("a", value),))
    assert decode(*encode(request, content_type)) == request
    deeper = EnqueueUpdatesRequest(RequestId("r"), "w", "c", (Set("a", [value]),))
    with pytest.raises(UnprocessableError) as caught:
        decode(*encode(deeper, content_type))
    assert caught.value.code == "too_deep"


@pytest.mark.parametrize("content_type", ContentType)
@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)], ids=hex)
def test_integers_of_64_bits_are_read(content_type: ContentType, value: int) -> None:
    assert loads(content_type, dumps(content_type, [value])) == [value]


@pytest.mark.parametrize("content_type", ContentType)
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64 - 1], ids=hex)
def test_integers_outside_64_bits_are_refused(content_type: ContentType, value: int) -> None:
    payload = cbor2.dumps([value]) if content_type is CBOR else json.dumps([value]).encode()
    assert refused(content_type, payload).code == "malformed"


@pytest.mark.parametrize("content_type", ContentType)
@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, "\ud800"], ids=["object", "nan", "set", "surrogate"])
def test_what_is_no_json_value_does_not_get_through(content_type: ContentType, value: object) -> None:
    """The writer refuses it; so does the reader, where CBOR has an encoding for it."""
    with pytest.raises(UnprocessableError):
        loads(content_type, dumps(content_type, [value]))


# -- CBOR --------------------------------------------------------------------------------------------------------------


def test_every_tag_is_refused_before_it_builds_anything() -> None:
    """Checks all tags up to 65535, so that tags that a newer cbor2 supports are noticed, and some of the largest
    ones."""
    for tag in [*range(65_536), 2**32 - 1, 2**32, 2**64 - 1]:
        for content in (b"\x01", b"\x80"):
            error = refused(CBOR, b"\xdb" + struct.pack(">Q", tag) + content)
            assert (error.code, "tags are not allowed" in error.message) == ("malformed", True), tag


KNOWN_TO_CBOR2 = [
    2**64, -(2**64) - 1, Decimal("1.5"), Fraction(1, 3), datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1),
    {1, 2}, frozenset({1}), pattern("a+"), MIMEText("x"), UUID(int=7), ip_address("10.0.0.1"), ip_address("::1"),
    ip_network("10.0.0.0/8"), 1 + 2j,
]  # fmt: skip


@pytest.mark.parametrize("value", KNOWN_TO_CBOR2, ids=lambda value: type(value).__name__)
def test_no_object_that_cbor2_can_build_gets_in(value: object) -> None:
    for payload in (cbor2.dumps(value), cbor2.dumps({"v2": [value]})):
        assert "tags are not allowed" in refused(CBOR, payload).message


@pytest.mark.parametrize(
    "payload",
    [
        "c5 82 1b 7fffffffffffffff 01",  # a bigfloat with a huge exponent
        "c4 82 1b 7fffffffffffffff 01",  # a decimal fraction with a huge exponent
        "d9 0100 83 63 616263 d8 19 00 d8 19 00",  # a string namespace and references into it
        "d8 1c 81 d8 1d 00",  # a list that contains itself
        "d9 d9f7 01",  # self-described CBOR
        "a1 c2 41 01 01",  # a tagged key
        "81 c2 5a 10000000",  # a big integer that claims to have 256 MiB
    ],
)
def test_tags_that_are_attacks_are_refused(payload: str) -> None:
    assert refused(CBOR, bytes.fromhex(payload)).code == "malformed"


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        ("", "nothing"),
        ("01 01", "a second item"),
        ("80 00", "a byte after the end"),
        ("a1 61 61", "a key without its value"),
        ("82 01", "an item too few"),
        ("a2 61 61 01 61 61 02", "a key twice"),
        ("a1 01 02", "a number as key"),
        ("a1 81 01 02", "a list as key"),
        ("a1 a0 02", "a map as key"),
        ("a1 f6 02", "null as key"),
        ("a1 41 61 02", "bytes as key"),
        ("41 61", "bytes"),
        ("81 40", "no bytes"),
        ("f7", "undefined"),
        ("f0", "a simple value"),
        ("81 f8 ff", "a simple value"),
        ("f8 14", "false in two bytes"),
        ("f9 7e00", "NaN"),
        ("f9 7c00", "infinity"),
        ("f9 fc00", "minus infinity"),
        ("fa 7fc00000", "NaN"),
        ("fb 7ff8000000000000", "NaN"),
        ("fb 7ff0000000000000", "infinity"),
        ("1b ffffffffffffffff", "a large integer"),
        ("3b ffffffffffffffff", "a large negative integer"),
        ("9f 01 ff", "a list of indefinite length"),
        ("bf 61 61 01 ff", "a map of indefinite length"),
        ("7f 61 61 ff", "text of indefinite length"),
        ("5f 41 61 ff", "bytes of indefinite length"),
        ("61 ff", "text that is not UTF-8"),
        ("63 eda080", "a surrogate in UTF-8"),
        ("62 c080", "an overlong NUL"),
        ("1c", "a reserved length"),
        ("5c", "a reserved length"),
        ("fc", "a reserved simple value"),
        ("ff", "a break"),
        ("81 ff", "a break in a list"),
    ],
)
def test_cbor_that_is_not_json_is_refused(payload: str, what: str) -> None:
    assert refused(CBOR, bytes.fromhex(payload)).code == "malformed", what


def bombs() -> Iterator[tuple[str, bytes]]:
    for major, name in ((2, "bytes"), (3, "text"), (4, "list"), (5, "map")):
        for length in (2**16, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**63, 2**64 - 1):
            head = bytes([major << 5 | 27]) + struct.pack(">Q", length)
            yield f"{name} of {length}", head
            yield f"{name} of {length} in a list", b"\x81" + head + b"\x01" * 8
            yield f"lists, then {name} of {length}", head * 30 if major == 4 else b"\x82\x01" * 30 + head
    for name, unit in (("lists", b"\x81"), ("maps", b"\xa1\x61a"), ("tags", b"\xc6"), ("indefinite", b"\x9f"),
                       ("list keys", b"\xa1\x81"), ("map keys", b"\xa1"), ("shared", b"\xd8\x1c\x81")):  # fmt: skip
        yield f"a million nested {name}", unit * 1_000_000


@pytest.mark.parametrize(("what", "payload"), list(bombs()), ids=[what for what, _ in bombs()])
def test_a_small_message_never_takes_much_memory(what: str, payload: bytes) -> None:
    tracemalloc.start()
    try:
        assert refused(CBOR, payload).code in ("malformed", "too_deep")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(payload) + 1_000_000, what


def test_keys_whose_hashes_collide_are_refused_at_the_first() -> None:
    """Lists as keys would become tuples, whose hashes an attacker can make collide, which takes quadratic time."""
    payload = b"\xba\x00\x01\x00\x00" + b"\x82\x01\x02\x00" * 65_536
    assert "key must be a text" in refused(CBOR, payload).message


def test_cbor_of_other_widths_is_read_as_the_same_value() -> None:
    """Other writers may use longer heads than necessary, and shorter floats than Rebaser's writer."""
    assert loads(CBOR, bytes.fromhex("9b0000000000000003 1800 190001 f93e00")) == [0, 1, 1.5]
    assert loads(CBOR, bytes.fromhex("b801 7801 61 fa3fc00000")) == {"a": 1.5}


def test_a_decoder_that_is_used_again_keeps_nothing_of_an_earlier_payload() -> None:
    """After an error, cbor2 keeps the bytes that it has not decoded. Other threads decode at the same time."""
    bad = (
        b"\x82\x01",
        b"\x81" * (DEPTH + 1) + b"\x01",
        b"\xa2\x61a\x01\x61a\x02\x03",
        b"\x01\x02",
        b"\xc2\x41\x07\x05",
    )
    good: list[Any] = [[1, "a"], {"k": "v" * 70_000}, 7, [[], {}]]

    def decode_all(_: int) -> bool:
        for payload in bad * 10:
            refused(CBOR, payload)
            for value in good:
                assert loads(CBOR, dumps(CBOR, value)) == value
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(decode_all, range(8)))


# -- JSON --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b"", b" ", b"{", b"[1,]", b"{'a':1}", b"nul", b"[1] 2", b"{}x", b"1 1",
        b"NaN", b"[Infinity]", b"-Infinity", b"1e999", b"-1e999", b"[1e400]",
        b'{"a":1,"a":2}', b'{"a":{"b":1,"b":1}}', b'{"a":1,"\\u0061":2}',
        b"\xff", b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', b'["x", "\\udc00"]', b'{"\\ud83d": 1}',
        b'"\\ude00\\ud83d"',
        b"\xef\xbb\xbf{}", b"\x00", b'"\n"', b"01", b"+1", b".5", b"1.", b"0x10", b'"\\x41"', "[\uff11]".encode(),
        '{"a":1}'.encode("utf-16"), '{"a":1}'.encode("utf-32"),
    ],
)  # fmt: skip
def test_json_that_is_not_strict_is_refused(payload: bytes) -> None:
    assert refused(JSON, payload).code == "malformed"


def test_json_that_is_strict_is_read() -> None:
    text = ' {"a": [1, -0, 1.0, 1e2, true, false, null], "\\ud83d\\ude00": "\\n\\u00e9\\\\\\""}\n'
    assert repr(loads(JSON, text.encode())) == repr({"a": [1, 0, 1.0, 100.0, True, False, None], "😀": '\né\\"'})


def test_a_long_number_is_refused_without_being_computed() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)  # Python's own limit must not be what prevents this.
    try:
        for sign in (b"", b"-"):
            message = refused(JSON, b"[" + sign + b"9" * 1_000_000 + b"]").message
            assert message.startswith(
                "the JSON text is not valid"
            )  # the parser refuses these; a computed value is refused after parsing
    finally:
        sys.set_int_max_str_digits(before)
    assert refused(JSON, b"0." + b"9" * 1_000_000).code == "malformed"


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'[{"a":'], ids=["lists", "maps", "both"])
def test_deep_json_is_refused_before_the_parser_meets_it(unit: bytes) -> None:
    assert refused(JSON, unit * 1_000_000).code == "too_deep"


def test_brackets_inside_json_text_are_not_depth() -> None:
    for text in ["[" * 1000, '"[' * 1000, "\\[" * 1000, '\\"{' * 1000, "\\\\" * 3 + '"' + "[" * 500, "\\"]:
        value = {"k" + text: [text, {"x": text}]}
        assert loads(JSON, dumps(JSON, value)) == value
        assert loads(JSON, json.dumps(value).encode()) == value
    assert refused(JSON, dumps(JSON, ["[" * 1000]) + b"]" * 200).code == "malformed"
    assert loads(JSON, dumps(JSON, ["\\", "[" * 1000])) == ["\\", "[" * 1000]
    deep = b"[" * (DEPTH - 1) + dumps(JSON, ["\\", '"', '\\"']) + b"]" * (DEPTH - 1)
    assert loads(JSON, deep)
    assert refused(JSON, b"[" + deep + b"]").code == "too_deep"
