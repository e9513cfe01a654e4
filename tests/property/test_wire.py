"""Written messages are read back unchanged, and reading any other bytes raises only `RebaserError`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.checkpoint import read_checkpoint
from rebaser_core.commit import Commit, Kind
from rebaser_core.encoding.envelope import CONTENT_TYPE, MESSAGE_TYPE, MESSAGE_VERSION, ContentType
from rebaser_core.encoding.payload import dumps, loads
from rebaser_core.errors import RebaserError, UnprocessableError
from rebaser_core.messages import (
    REGISTRY,
    DvuProgress,
    EnqueueUpdatesRequest,
    EnqueueUpdatesResponse,
    decode,
    decode_commit,
    decode_delta,
    decode_updates_blob,
    encode,
    encode_commit,
    encode_delta,
    encode_updates_blob,
    peek,
    read_sweep_headers,
)
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Remove, Set, Unset, check_updates, parse_update
from tests.support import random_input
from tests.support.examples import examples
from tests.wire import strategies as wire

content_types = st.sampled_from(ContentType)
GOLDEN = {example.name: example.path.read_bytes() for example in examples()}


def for_all(*strategies: st.SearchStrategy[Any], times: float = 1.0) -> Callable[[Any], Any]:
    """Return `given` with `times` the usual number of examples."""
    return lambda test: random_input.examples(times)(given(*strategies)(test))


def assert_same(left: object, right: object) -> None:
    assert left == right
    assert repr(left) == repr(right)  # 1, 1.0 and true are equal, but not identical


# -- round trips -------------------------------------------------------------------------------------------------------


@for_all(wire.requests | wire.responses | wire.progress, content_types)
def test_a_message_comes_back_the_same(
    message: EnqueueUpdatesRequest | EnqueueUpdatesResponse | DvuProgress, content_type: ContentType
) -> None:
    headers, payload = encode(message, content_type)
    assert_same(decode(headers, payload, expect=type(message)), message)


@for_all(wire.commits(), content_types)
def test_a_commit_comes_back_the_same(commit: Commit, content_type: ContentType) -> None:
    headers, payload = encode_commit(commit, content_type)
    assert_same(decode_commit(headers, payload), commit)
    assert read_sweep_headers(headers) == (commit.applied, commit.debt)


@for_all(wire.update_tuples, st.lists(wire.computed, max_size=4).map(tuple))
def test_blobs_come_back_the_same(updates: Any, computed: Any) -> None:
    assert_same(decode_updates_blob(encode_updates_blob(updates)), updates)
    assert_same(decode_delta(Kind.REBASE, encode_delta(updates)), updates)
    if computed:
        assert_same(decode_delta(Kind.DVU, encode_delta(computed)), computed)


@for_all(wire.json_values, content_types)
def test_a_json_value_comes_back_the_same(value: object, content_type: ContentType) -> None:
    assert_same(loads(content_type, dumps(content_type, value)), value)


@for_all(wire.updates)
def test_an_update_comes_back_the_same_from_its_wire_form(update: Any) -> None:
    assert_same(check_updates([update]), (update,))


@for_all(wire.requests_by_address, content_types)
def test_an_old_request_is_the_same_request_after_its_upgrade(
    request: EnqueueUpdatesRequest, content_type: ContentType
) -> None:
    """Every field of version 1 is in the upgraded request."""
    headers, payload = encode(request, content_type, version=1)
    assert headers[MESSAGE_VERSION] == "1"
    assert_same(decode(headers, payload), request)


def test_no_upgrade_drops_a_field() -> None:
    for kind in REGISTRY.types.values():
        assert len(kind.upgrades) == kind.current - 1
        for old, new in zip(kind.bodies, kind.bodies[1:], strict=False):
            assert old.model_fields.keys() <= new.model_fields.keys(), kind.name


# -- other bytes -------------------------------------------------------------------------------------------------------

known_headers = st.fixed_dictionaries(
    {
        CONTENT_TYPE: content_types.map(str) | st.text(max_size=20),
        MESSAGE_TYPE: st.sampled_from([*REGISTRY.types, "Commit"]) | st.text(max_size=20),
        MESSAGE_VERSION: st.sampled_from(["1", "2", "3", "4", "5", "0", "-1", "01", "٣", "9" * 5000])
        | st.text(max_size=5),
    }
)
any_headers = st.none() | known_headers | st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4)
readable_headers = st.builds(
    lambda content_type, name, version: {
        CONTENT_TYPE: str(content_type),
        MESSAGE_TYPE: name,
        MESSAGE_VERSION: str(version),
    },
    content_types,
    st.sampled_from(sorted(REGISTRY.types)),
    st.sampled_from([1, 2, 3, 4]),
)

foreign_leaves = st.one_of(
    st.binary(max_size=8),
    st.floats(),
    st.integers(),
    st.decimals(),
    st.fractions(),
    st.dates(),
    st.uuids(),
    st.ip_addresses(),
    st.frozensets(st.integers(), max_size=3),
    st.builds(cbor2.CBORTag, st.integers(0, 2**64 - 1), st.integers(0, 3)),
    st.just(cbor2.undefined),
    st.builds(cbor2.CBORSimpleValue, st.sampled_from([0, 1, 19, 32, 255])),
)
body_fields = {
    field.alias or ""
    for kind in REGISTRY.types.values()
    for body in kind.bodies
    for field in body.model_fields.values()
}
update_fields = {"op", "value", "function", "inputs", "params"}
delta_fields = {"computed", "address", "size", "error", "code", "message", "origin"}
other_fields = {"v1", "v2", "success", "conflicts", "commit", "performed", "stream", "sequence"}
field_names = st.sampled_from(sorted(body_fields | update_fields | delta_fields | other_fields))
almost = st.recursive(
    wire.json_values | foreign_leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(field_names, inner, max_size=6)
        | st.dictionaries(st.integers() | st.binary(max_size=3), inner, max_size=2)
    ),
    max_leaves=12,
)
almost_payloads = st.builds(
    lambda version, fields: cbor2.dumps({f"v{version}": fields}),
    st.sampled_from([1, 2, 3, 4]),
    st.dictionaries(field_names, almost, max_size=8) | almost,
)


@st.composite
def damaged(draw: st.DrawFn, names: list[str]) -> bytes:
    """Draw a golden file with a few bytes changed, inserted or removed, or with its end cut off."""
    data = bytearray(GOLDEN[draw(st.sampled_from(names))])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["put", "take", "change", "cut"])):
            case "put":
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
            case "take":
                del data[at : at + draw(st.integers(1, 4))]
            case "change":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case _:
                del data[at:]
    return bytes(data)


def golden(kind: str) -> list[str]:
    return [name for name in GOLDEN if name.startswith(kind)]


any_payload = st.binary(max_size=64) | almost_payloads | damaged(sorted(GOLDEN))


def outcome(read: Callable[[], object]) -> object:
    """Return the result of `read`, or the `RebaserError` that it raises. Any other exception fails the test."""
    try:
        return read()
    except RebaserError as error:
        return error


def gives_or_refuses(read: Callable[[], object], *kinds: type) -> None:
    found = outcome(read)
    if isinstance(found, RebaserError):
        assert found.code
        assert len(found.message) < 1000
    else:
        assert isinstance(found, kinds)


@for_all(any_headers | readable_headers, any_payload)
def test_any_bytes_with_any_headers_are_a_message_or_an_error(headers: dict[str, str] | None, payload: bytes) -> None:
    gives_or_refuses(
        lambda: decode(headers, payload), EnqueueUpdatesRequest, EnqueueUpdatesResponse, Commit, DvuProgress
    )
    gives_or_refuses(lambda: decode_commit(headers, payload), Commit)
    gives_or_refuses(lambda: read_sweep_headers(headers), tuple)


@for_all(readable_headers, almost_payloads | damaged(golden("Enqueue") + golden("Commit")), times=3)
def test_a_payload_behind_good_headers_is_a_message_or_an_error(headers: dict[str, str], payload: bytes) -> None:
    gives_or_refuses(
        lambda: decode(headers, payload), EnqueueUpdatesRequest, EnqueueUpdatesResponse, Commit, DvuProgress
    )


@for_all(any_headers)
def test_headers_alone_decide(headers: dict[str, str] | None) -> None:
    """`decode` refuses what `peek` refuses, in the same way, whatever the payload is."""
    refused = outcome(lambda: peek(headers))
    if isinstance(refused, RebaserError):
        for payload in (b"", GOLDEN["EnqueueUpdatesRequest.v2.inline.cbor"]):
            again = outcome(partial(decode, headers, payload))
            assert isinstance(again, RebaserError)
            assert (type(again), again.code) == (type(refused), refused.code)


@for_all(any_payload | damaged(golden("UpdatesBlob") + golden("DeltaBlob")), st.sampled_from(Kind))
def test_any_bytes_are_a_blob_or_an_error(data: bytes, kind: Kind) -> None:
    gives_or_refuses(lambda: decode_updates_blob(data), tuple)
    gives_or_refuses(lambda: decode_delta(kind, data), tuple)


@for_all(st.binary(max_size=64) | almost_payloads | damaged(golden("Checkpoint")), times=3)
def test_any_bytes_are_a_checkpoint_or_an_error(data: bytes) -> None:
    gives_or_refuses(lambda: read_checkpoint(data), ChangeSetState)


@for_all(st.binary(max_size=64) | st.text().map(str.encode) | almost_payloads, content_types)
def test_any_bytes_are_a_json_value_or_malformed(data: bytes, content_type: ContentType) -> None:
    found = outcome(lambda: loads(content_type, data))
    if isinstance(found, RebaserError):
        assert isinstance(found, UnprocessableError)
        assert found.code in ("malformed", "too_deep")
    else:
        assert_same(loads(content_type, dumps(content_type, found)), found)


@for_all(almost | st.dictionaries(field_names, wire.json_values | wire.inputs | almost, max_size=5))
def test_anything_is_an_update_or_an_error(raw: object) -> None:
    gives_or_refuses(lambda: parse_update(raw), Set, Derive, Unset, Remove)
