"""Headers are checked first, in order; only then is a payload read."""

import pytest

from rebaser_core.encoding.envelope import (
    CBOR,
    CONTENT_TYPE,
    JSON,
    MESSAGE_TYPE,
    MESSAGE_VERSION,
    ContentType,
    Peeked,
    content_type_of,
    dumps,
)
from rebaser_core.errors import RebaserError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesResponse, Success, decode, encode, peek
from rebaser_core.updates import Set

REQUEST = EnqueueUpdatesRequest(RequestId("r"), "w", "c", (Set("a", 1),))


def headers(
    content_type: str | None = "application/cbor",
    name: str | None = "EnqueueUpdatesRequest",
    version: str | None = "2",
) -> dict[str, str]:
    found = {CONTENT_TYPE: content_type, MESSAGE_TYPE: name, MESSAGE_VERSION: version}
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("found", "error", "code"),
    [
        (None, UnprocessableError, "malformed"),
        ({}, UnprocessableError, "malformed"),
        (headers(content_type=None), UnprocessableError, "malformed"),
        (headers(name=None), UnprocessableError, "malformed"),
        (headers(version=None), UnprocessableError, "malformed"),
        # The cases are in order: an unknown content type hides an unknown type, which hides an unknown version.
        (headers("text/plain", "Nothing", "99"), UnprocessableError, "unsupported_content_type"),
        (headers("text/plain", None, None), UnprocessableError, "unsupported_content_type"),
        (headers("application/json", "Nothing", "99"), UnprocessableError, "unknown_message_type"),
        (headers("application/json", "Nothing", "x"), UnprocessableError, "unknown_message_type"),
        (headers("application/cbor+x"), UnprocessableError, "unsupported_content_type"),
        (headers("; application/cbor"), UnprocessableError, "unsupported_content_type"),
        (headers("Application/JSON; charset=utf-8", "Nothing", "99"), UnprocessableError, "unknown_message_type"),
        (headers("Application/JSON; charset=utf-8", None), UnprocessableError, "malformed"),
        (headers(name="enqueueupdatesrequest"), UnprocessableError, "unknown_message_type"),
        (headers(version="5"), UnsupportedVersion, "unsupported_version"),
        (headers(version="99"), UnsupportedVersion, "unsupported_version"),
        *[
            (headers(version=version), UnprocessableError, "malformed")
            for version in ["", "0", "-1", "+1", "1.0", "1e0", " 1", "1 ", "01", "0x1", "1_0", "٣", "¹", "9" * 10_000]
        ],
    ],
)
def test_headers_are_refused_in_order(found: dict[str, str] | None, error: type[RebaserError], code: str) -> None:
    with pytest.raises(error) as caught:
        peek(found)
    assert caught.value.code == code
    with pytest.raises(error):
        decode(found, b"\xff the payload is never looked at")


def test_headers_say_what_a_message_is() -> None:
    assert peek(headers("application/json", version="1")) == Peeked(JSON, "EnqueueUpdatesRequest", 1)
    assert peek(headers() | {"X-Other": "ignored"}) == Peeked(CBOR, "EnqueueUpdatesRequest", 2)


@pytest.mark.parametrize(
    ("content_type", "known"),
    [
        ("APPLICATION/CBOR", CBOR),
        ("Application/Json", JSON),
        ("application/json;charset=utf-8", JSON),
        ('application/json ; charset="UTF-8"; profile=x', JSON),
    ],
)
def test_content_types_are_mime_types(content_type: str, known: ContentType) -> None:
    assert peek(headers(content_type)) == Peeked(known, "EnqueueUpdatesRequest", 2)
    assert decode(headers(content_type), encode(REQUEST, known)[1]) == REQUEST
    assert content_type_of(headers(content_type)) is known


@pytest.mark.parametrize("found", [None, {}, headers("text/plain")])
def test_what_has_no_content_type_that_we_know_is_answered_in_cbor(found: dict[str, str] | None) -> None:
    assert content_type_of(found) is CBOR


def test_another_known_type_than_expected_is_refused_before_the_payload_is_read() -> None:
    found, _ = encode(EnqueueUpdatesResponse(RequestId("r"), "w", "c", Success(1, 1)))
    with pytest.raises(UnprocessableError) as caught:
        decode(found, b"\xff", expect=EnqueueUpdatesRequest)
    assert caught.value.code == "unexpected_message_type"


@pytest.mark.parametrize(
    "payload",
    [
        {"v1": {"id": "r", "workspaceId": "w", "changeSetId": "c", "updates": []}},
        {},
        [],
        {"v2": {}, "v1": {}},
        {"v3": {}},
        {"2": {}},
        {"v2": []},
        {"v2": None},
    ],
    ids=repr,
)
def test_the_tag_of_the_payload_is_the_version_of_the_header(payload: object) -> None:
    with pytest.raises(UnprocessableError) as caught:
        decode(headers(), dumps(CBOR, payload))
    assert caught.value.code == "malformed"


def test_headers_of_a_message_belong_to_the_caller() -> None:
    first, _ = encode(REQUEST)
    first["Nats-Msg-Id"] = "w.c.r"
    again, _ = encode(REQUEST)
    assert again == headers()


def test_a_payload_with_a_million_unknown_fields_is_one_short_error() -> None:
    payload = dumps(CBOR, {"v2": {str(number): number for number in range(100_000)}})
    with pytest.raises(UnprocessableError) as caught:
        decode(headers(), payload)
    assert (caught.value.code, len(caught.value.message) < 200) == ("malformed", True)
