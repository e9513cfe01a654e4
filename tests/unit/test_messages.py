"""Requests, responses and blobs: the constraints on their fields, and how errors name a violation."""

from typing import Any

import pytest

from rebaser_core.blobs.address import address_of, check_address
from rebaser_core.commit import Commit, Computed, Kind
from rebaser_core.encoding.envelope import (
    CBOR,
    CONTENT_TYPE,
    MESSAGE_TYPE,
    MESSAGE_VERSION,
    dumps,
    loads,
)
from rebaser_core.errors import RebaserError, UnprocessableError, UnsupportedVersion
from rebaser_core.ids import RequestId
from rebaser_core.limits import Limits
from rebaser_core.messages import (
    REGISTRY,
    EnqueueUpdatesRequest,
    EnqueueUpdatesResponse,
    Success,
    decode,
    decode_delta,
    decode_updates_blob,
    encode,
    encode_delta,
    encode_updates_blob,
)
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Match, Recompute, Remove, Set, Unset
from rebaser_core.values import Fault

ADDRESS = address_of(b"")
REQUEST = {"id": "r", "workspaceId": "w", "changeSetId": "c"}
SET = {"op": "set", "id": "a", "value": 1}


def headers(name: str, version: int) -> dict[str, str]:
    return {CONTENT_TYPE: str(CBOR), MESSAGE_TYPE: name, MESSAGE_VERSION: str(version)}


def read(name: str, version: int, body: object) -> Any:
    return decode(headers(name, version), dumps(CBOR, {f"v{version}": body}))


def refusal(name: str, version: int, body: object) -> tuple[str, str]:
    with pytest.raises(UnprocessableError) as caught:
        read(name, version, body)
    return caught.value.code, caught.value.message


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "fields", "code"),
    [
        (1, {}, "malformed"),
        (1, {"updates": [SET]}, "malformed"),
        (1, {"updatesAddress": ADDRESS, "updates": [SET]}, "malformed"),
        (1, {"updatesAddress": None}, "malformed"),
        (1, {"updatesAddress": "sha256:00"}, "invalid_address"),
        (2, {}, "malformed"),
        (2, {"updates": None, "updatesAddress": None}, "malformed"),
        (2, {"updates": [SET], "updatesAddress": ADDRESS}, "malformed"),
        (2, {"updates": [SET], "updates_address": ADDRESS}, "malformed"),
        (2, {"updates": [SET], "more": 1}, "malformed"),
        (2, {"updates": {}}, "malformed"),
        (2, {"updates": "set"}, "malformed"),
        (2, {"updates": [{"op": "add", "id": "a"}]}, "invalid_update"),
        (2, {"updates": [SET, {"op": "set", "id": ""}]}, "invalid_update"),
        (2, {"updatesAddress": "s3://bucket/key"}, "invalid_address"),
        (2, {"updatesAddress": "../../etc/passwd"}, "invalid_address"),
        (2, {"updatesAddress": 7}, "malformed"),
        (2, {"updates": [], "id": ""}, "invalid_id"),
        (4, {"create": {"target": "main"}}, "malformed"),
        (4, {"create": {"at": 1}}, "malformed"),
        (2, {"updates": [], "id": "x" * 65}, "invalid_id"),
        (2, {"updates": [], "id": "a.b"}, "invalid_id"),
        (2, {"updates": [], "id": 7}, "malformed"),
        (2, {"updates": [], "workspaceId": "*"}, "invalid_id"),
        (2, {"updates": [], "changeSetId": ">"}, "invalid_id"),
        (2, {"updates": [], "fromChangeSetId": "a b"}, "invalid_id"),
        (2, {"updates": [], "fromChangeSetId": ""}, "invalid_id"),
    ],
    ids=str,
)
def test_a_request_with_a_wrong_field_is_refused(version: int, fields: dict[str, Any], code: str) -> None:
    assert refusal("EnqueueUpdatesRequest", version, REQUEST | fields)[0] == code


def test_the_error_names_the_update_that_is_wrong() -> None:
    _, message = refusal("EnqueueUpdatesRequest", 2, REQUEST | {"updates": [SET, SET, {"op": "set", "id": "b"}]})
    assert message == "update 2: set 'b' has no value: add the field 'value'"


def test_the_error_names_the_field_that_is_wrong() -> None:
    _, message = refusal("EnqueueUpdatesRequest", 2, {"id": 1, "workspaceId": "w", "changeSetId": "c"})
    assert message.startswith("id: ")


def test_a_missing_field_is_refused() -> None:
    assert refusal("EnqueueUpdatesRequest", 2, {"id": "r", "updates": [], "workspaceId": "w"})[0] == "malformed"


def test_updates_of_a_request_are_bounded() -> None:
    request = EnqueueUpdatesRequest(RequestId("r"), "w", "c", (Set("a", 1), Set("b", 2)))
    with pytest.raises(UnprocessableError) as caught:
        decode(*encode(request), Limits(max_updates=1))
    assert caught.value.code == "too_large"


@pytest.mark.parametrize(
    ("updates", "address", "version"),
    [((Set("a", 1),), ADDRESS, 2), (None, None, 2), ((Set("a", 1),), None, 1)],
)
def test_a_request_is_not_written_as_what_a_reader_would_refuse(updates: Any, address: Any, version: int) -> None:
    with pytest.raises(UnprocessableError) as caught:
        encode(EnqueueUpdatesRequest(RequestId("r"), "w", "c", updates, address), version=version)
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("raw", "code"),
    [("all", "malformed"), ({"function": ""}, "invalid_update"), ({"function": None}, "invalid_update"),
     ({"of": "sum"}, "invalid_update"), ({"function": "a\nb"}, "invalid_update")],
)  # fmt: skip
def test_what_to_recompute_is_checked(raw: Any, code: str) -> None:
    assert refusal("EnqueueUpdatesRequest", 3, REQUEST | {"updates": [], "recompute": raw})[0] == code


def test_an_older_version_of_a_request_cannot_ask_to_recompute() -> None:
    assert refusal("EnqueueUpdatesRequest", 2, REQUEST | {"updates": [], "recompute": {}})[0] == "malformed"
    with pytest.raises(UnprocessableError) as caught:
        encode(EnqueueUpdatesRequest(RequestId("r"), "w", "c", (), recompute=Recompute()), version=2)
    assert caught.value.code == "invalid_request"


def test_only_a_request_to_recompute_needs_the_newest_version() -> None:
    for recompute, version in ((None, "2"), (Recompute(), "3"), (Recompute("sum"), "3")):
        request = EnqueueUpdatesRequest(RequestId("r"), "w", "c", (Set("a", 1),), recompute=recompute)
        assert encode(request)[0][MESSAGE_VERSION] == version


# -- responses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        "success",
        {"success": None},
        {"success": {"performed": 1}},
        {"success": {"performed": -1, "commit": 1}},
        {"success": {"performed": True, "commit": 1}},
        {"success": {"performed": 1.0, "commit": 1}},
        {"success": {"performed": "1", "commit": 1}},
        {"success": {"performed": 1, "commit": 1}, "error": {"code": "x", "message": "", "commit": None}},
        {"skipped": {}},
        {"error": {"code": "x"}},
        {"conflicts": {"message": "", "commit": 1, "conflicts": [{"id": "a"}] * 10}},
    ],
    ids=repr,
)
def test_a_response_without_one_good_status_is_refused(status: object) -> None:
    assert refusal("EnqueueUpdatesResponse", 1, REQUEST | {"status": status})[0] == "malformed"


def test_a_list_with_many_faults_is_one_error() -> None:
    """Otherwise, every faulty element would cost an error object."""
    status = {"conflicts": {"message": "", "commit": 1, "conflicts": [{}] * 50_000}}
    code, message = refusal("EnqueueUpdatesResponse", 1, REQUEST | {"status": status})
    assert (code, message.startswith("status.conflicts.conflicts.0.")) == ("malformed", True)


def test_unknown_fields_in_any_number_are_one_error() -> None:
    many = {str(number): number for number in range(50_000)}
    for status in (many, {"error": many}):
        code, message = refusal("EnqueueUpdatesResponse", 1, REQUEST | {"status": status})
        assert (code, message.startswith("a map has 50000 fields")) == ("malformed", True)


# -- blobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 1000])
def test_a_blob_is_bounded_however_many_slices_it_is_written_in(at_once: int) -> None:
    delta = tuple(Set(f"v{n}", "x" * 50) for n in range(20))
    with forced(Thresholds(blob_slice_max_items=at_once)):
        blob = encode_delta(delta)
        assert encode_delta(delta, len(blob)) == blob
        with pytest.raises(UnprocessableError, match="would have more than 1000 bytes") as caught:
            encode_delta(delta, 1000)
    assert caught.value.code == "too_large"


@pytest.mark.parametrize(
    ("raw", "error", "code"),
    [
        ({"v3": {"updates": []}}, UnsupportedVersion, "unsupported_version"),
        ({"v1": {"computed": []}}, UnprocessableError, "malformed"),
        ({"v1": {"updates": {}}}, UnprocessableError, "malformed"),
        ({"v1": {"updates": [], "more": 1}}, UnprocessableError, "malformed"),
        ({"v1": []}, UnprocessableError, "malformed"),
        ({"v1": {}}, UnprocessableError, "malformed"),
        ({"v0": {"updates": []}}, UnprocessableError, "malformed"),
        ({"v1": {"updates": []}, "v2": {}}, UnprocessableError, "malformed"),
        ([], UnprocessableError, "malformed"),
        ({"v1": {"updates": [SET, {"op": "set"}]}}, UnprocessableError, "invalid_update"),
    ],
    ids=repr,
)
def test_a_blob_that_holds_something_else_is_refused(raw: object, error: type[RebaserError], code: str) -> None:
    with pytest.raises(error) as caught:
        decode_updates_blob(dumps(CBOR, raw))
    assert caught.value.code == code


def test_a_match_needs_a_version_that_has_them() -> None:
    """An older program would read the pattern as no input, and must not take a commit for less than was applied."""
    derive = Derive("t", "sum", {"x": ("a", Match("b/*"))})
    request = EnqueueUpdatesRequest(RequestId("r"), "w", "c", (Set("a", 1), derive))
    commit = Commit("i", 0, Kind.REBASE, 0, "o", None, 0, delta=(derive,))
    wires: dict[str, Any] = {}
    for message, needed in ((request, 3), (commit, 2)):
        headers, payload = REGISTRY.encode(message)
        assert headers[MESSAGE_VERSION] == str(needed)
        with pytest.raises(UnprocessableError):
            REGISTRY.encode(message, version=needed - 1)
        wires[headers[MESSAGE_TYPE]] = loads(CBOR, payload)
    asked = wires["EnqueueUpdatesRequest"]["v3"]
    assert refusal("EnqueueUpdatesRequest", 2, asked)[1] == "update 1 of 't': input id must be text, not dict"
    slowly = asked | {"fromChangeSetId": "b"}
    assert refusal("EnqueueUpdatesRequest", 2, slowly)[1] == "update 1 of 't': input id must be text, not dict"
    assert refusal("Commit", 1, wires["Commit"]["v2"])[1] == "update 0 of 't': input id must be text, not dict"
    blob = encode_updates_blob([derive])
    assert blob[:4] == b"\xa1\x62v2"
    assert decode_updates_blob(blob) == (derive,)
    with pytest.raises(UnprocessableError, match="input id must be text"):
        decode_updates_blob(blob.replace(b"v2", b"v1", 1))


def test_a_blob_is_bounded_as_a_request_is() -> None:
    data = encode_updates_blob([Set("a", 1), Set("b", 2)])
    for limits in (Limits(max_updates=1), Limits(max_request_bytes=len(data) - 1)):
        with pytest.raises(UnprocessableError) as caught:
            decode_updates_blob(data, limits)
        assert caught.value.code == "too_large"
    assert len(decode_updates_blob(data, Limits(max_updates=2, max_request_bytes=len(data)))) == 2


def test_a_blob_that_promises_more_updates_than_it_has_is_refused() -> None:
    data = encode_updates_blob([Set("a", 1)])
    for damaged in (data[:-1], data + b"\x00", data.replace(b"\x81", b"\x9a\x00\x01\x86\xa0", 1)):
        with pytest.raises(UnprocessableError) as caught:
            decode_updates_blob(damaged)
        assert caught.value.code == "malformed"


def test_a_blob_of_indefinite_length_is_refused() -> None:
    unset = dumps(CBOR, Unset("a").to_wire())
    data = encode_updates_blob([]).removesuffix(b"\x80") + b"\x9f" + unset * 20 + b"\xff"
    with pytest.raises(UnprocessableError) as caught:
        decode_updates_blob(data)
    assert caught.value.code == "malformed"


def test_a_blob_by_another_writer_may_use_longer_heads() -> None:
    data = encode_updates_blob([Set("a", 1), Remove("b")])
    assert data[:4] == b"\xa1\x62v1"
    longer = b"\xb8\x01\x78\x02v1" + data[4:]
    assert decode_updates_blob(longer) == (Set("a", 1), Remove("b"))


def test_a_delta_blob_is_read_as_its_commit_says() -> None:
    computed = (Computed("a", 1), Computed("b", None, Fault("failed", "no", "a")))
    assert decode_delta(Kind.DVU, encode_delta(computed)) == computed
    with pytest.raises(UnprocessableError):
        decode_delta(Kind.REBASE, encode_delta(computed))
    with pytest.raises(UnprocessableError):
        decode_delta(Kind.DVU, encode_delta((Set("a", 1),)))


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_the_address_of_a_blob_is_its_hash() -> None:
    """The SHA-256 of the empty text is a published value (FIPS 180-4 examples)."""
    assert address_of(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert check_address(address_of(b"x")) == address_of(b"x")


@pytest.mark.parametrize(
    "address",
    [
        None,
        7,
        b"sha256:",
        "",
        ADDRESS[:-1],
        ADDRESS + "0",
        ADDRESS.upper(),
        ADDRESS[:7] + ADDRESS[7:].upper(),
        ADDRESS + "\n",
        "md5:" + "0" * 64,
    ],
    ids=repr,
)
def test_what_is_no_address_is_refused(address: object) -> None:
    with pytest.raises(UnprocessableError) as caught:
        check_address(address)
    assert caught.value.code == "invalid_address"


def test_a_response_is_written_as_documented() -> None:
    _, payload = encode(EnqueueUpdatesResponse(RequestId("r"), "w", "c", Success(2, 7)))
    assert loads(CBOR, payload) == {"v1": REQUEST | {"status": {"success": {"performed": 2, "commit": 7}}}}
