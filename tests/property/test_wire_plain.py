"""A plain message is written with the bytes that cbor2 writes for its wire map; other messages are not plain."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_core.commit import Applied, Authorship, CheckpointRef, Commit, Decision, Kind, Outcome
from rebaser_core.encoding import cbor_writer
from rebaser_core.encoding.envelope import CBOR, MESSAGE_VERSION, MessageType, dumps
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.limits import Limits
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesResponse, Success, encode
from rebaser_core.messages.commit import COMMIT
from rebaser_core.messages.request import REQUEST
from rebaser_core.messages.response import RESPONSE
from rebaser_core.updates import Set, check_updates, parse_updates
from tests.wire import strategies as wire

# Around each size at which the head of a number or of a text becomes longer, and around all numbers that are allowed.
EDGES = [edge + step for edge in (0, 24, 2**8, 2**16, 2**32, 2**63, 2**64) for step in (-1, 0, 1)]
SIZES = [size for size in EDGES if 0 <= size <= 2**16 + 1]
numbers = st.sampled_from(EDGES) | st.integers(0, 2**63)
lengths = (0, 23, 24, 127, 128, 255, 65536)
texts = st.sampled_from([*("a" * length for length in lengths), "é" * 128, "\ud800"]) | wire.texts
sets = st.lists(st.builds(Set, texts, wire.json_values | numbers), max_size=3).map(tuple)
updates = st.one_of(sets, sets, sets, wire.update_tuples)
decisions = st.builds(Decision, numbers, texts, st.just(Outcome.SUCCESS), numbers) | wire.decisions
checkpoints = st.builds(CheckpointRef, texts, numbers, numbers)
plain_commits = st.builds(
    Commit,
    *(texts, numbers, st.just(Kind.REBASE), numbers, texts, st.none() | st.builds(Applied, texts, numbers)),
    *(st.none() | numbers, st.lists(decisions, max_size=3).map(tuple), updates),
    checkpoint=st.none() | checkpoints,
    forget_before_ms=st.just(0) | numbers,
    debt=st.just(0) | numbers,
    before=st.none() | updates,
    authors=st.lists(st.builds(Authorship, texts, texts), max_size=2).map(tuple),
)


def test_pieces_are_those_of_cbor2() -> None:
    for number in EDGES:
        if 0 <= number < 2**64:
            assert cbor_writer.uint(number) == cbor_writer.item(number) == dumps(CBOR, number)
        else:
            with pytest.raises(OverflowError):
                cbor_writer.uint(number)
    for size in SIZES:
        assert cbor_writer.text("a" * size) == dumps(CBOR, "a" * size)
        assert cbor_writer.list_head(size) + b"\x00" * size == dumps(CBOR, [0] * size)
    for size in range(24):
        assert cbor_writer.map_head(size) == dumps(CBOR, dict.fromkeys(range(size), 0))[:1]


def check(kind: MessageType[Any], message: Any) -> None:
    """Check that `message` is written in the same way as by cbor2, or is not plain."""
    assert kind.write_plain is not None
    assert kind.lowest is not None
    try:
        written = kind.write_plain(message)
    except UnprocessableError:  # the general way refuses it, too
        with pytest.raises(UnprocessableError, match="cannot be encoded"):
            dumps(CBOR, kind.write(message, kind.lowest(message)))
        return
    if written is not None:
        version = kind.lowest(message)
        assert written == (version, dumps(CBOR, {f"v{version}": kind.write(message, version)}))


@given(st.builds(EnqueueUpdatesRequest, texts, texts, texts, updates) | wire.requests)
def test_requests(request: EnqueueUpdatesRequest) -> None:
    check(REQUEST, request)


@given(st.builds(EnqueueUpdatesResponse, texts, texts, texts, st.builds(Success, numbers, numbers)) | wire.responses)
def test_responses(response: EnqueueUpdatesResponse) -> None:
    check(RESPONSE, response)


@given(plain_commits | wire.commits())
def test_commits(commit: Commit) -> None:
    check(COMMIT, commit)


USUAL = Commit(
    *("c", 1, Kind.REBASE, 2, "o", Applied("s", 3), 4, (Decision(5, RequestId("r"), Outcome.SUCCESS, 1),)),
    (Set("a", -1), Set("b", [None, "x"])),
    checkpoint=CheckpointRef("sha256:0", 6, 7),
    forget_before_ms=8,
    debt=9,
    before=(Set("a", 1.5),),
    authors=(Authorship("ann", "why"),),
)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (REQUEST, EnqueueUpdatesRequest(RequestId("r"), "w", "c", (Set("a", 1), Set("b", {"k": 2})))),
        (RESPONSE, EnqueueUpdatesResponse(RequestId("r"), "w", "c", Success(1, 2))),
        (COMMIT, USUAL),
        (COMMIT, replace(USUAL, before=(), authors=(), covers=None, checkpoint=None, forget_before_ms=0, debt=0)),
        (COMMIT, replace(USUAL, before=None, authors=())),
        (COMMIT, replace(USUAL, delta=())),
    ],
)
def test_usual_messages_are_plain(kind: MessageType[Any], message: Any) -> None:
    assert kind.write_plain is not None
    assert kind.write_plain(message) is not None
    check(kind, message)
    assert encode(message)[0][MESSAGE_VERSION] == str(kind.write_plain(message)[0])  # type: ignore[index]


@pytest.mark.parametrize("edit", [Set("\ud800", 1), Set("a", "\ud800"), Set("a", ["\ud800"])])
def test_what_cannot_be_encoded_is_refused(edit: Set) -> None:
    with pytest.raises(UnprocessableError, match="cannot be encoded"):
        encode(EnqueueUpdatesRequest(RequestId("r"), "w", "c", (edit,)))


odd = st.sampled_from(["", "a" * 513, "no\x07", 7, None, (1, 2), {1: 2}, math.inf, 2**63, "\ud800", [[[(3,)]]], b""])


@given(st.lists(st.builds(Set, st.just("a") | odd, wire.json_values | odd), max_size=3))
def test_sets_are_checked_like_their_wire_maps(edits: list[Set]) -> None:
    limits = Limits(max_updates=2)
    assert outcome(lambda: check_updates(edits, limits)) == outcome(
        lambda: parse_updates([edit.to_wire() for edit in edits], limits)
    )


def outcome(check: Callable[[], object]) -> str:
    """Return the text of what `check` returns or raises, which tells 1 from 1.0 and from true."""
    try:
        return repr(check())
    except UnprocessableError as error:
        return f"{error.code}: {error.message}"
