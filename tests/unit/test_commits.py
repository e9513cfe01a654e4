"""Encoded commits: the constraints on their fields, and which newer ones are refused."""

from dataclasses import replace
from typing import Any

import pytest

from rebaser_core.blobs.address import address_of
from rebaser_core.commit import Applied, BlobRef, BranchStatus, BranchSummary, Commit, Decision, Kind, Outcome
from rebaser_core.encoding.envelope import (
    APPLIED,
    CBOR,
    CONTENT_TYPE,
    DEBT,
    MESSAGE_TYPE,
    MESSAGE_VERSION,
    ContentType,
    dumps,
    loads,
)
from rebaser_core.errors import UnprocessableError, UnsupportedVersion
from rebaser_core.ids import RequestId
from rebaser_core.messages import (
    check_commit,
    covers_header,
    decode_commit,
    encode_commit,
    read_covers,
    read_edited,
    read_sweep_headers,
    read_unknown,
)
from rebaser_core.messages.commit import COMMIT as COMMIT_TYPE
from rebaser_core.updates import Set

ADDRESS = address_of(b"")
FAULT = {"code": "failed", "message": "no", "origin": "a"}
COMMIT = {"id": "c", "previous": 4, "kind": "rebase", "atMs": 1, "owner": "o"}
SET = {"op": "set", "id": "a", "value": 1}


def headers(name: str, version: int) -> dict[str, str]:
    return {CONTENT_TYPE: str(CBOR), MESSAGE_TYPE: name, MESSAGE_VERSION: str(version)}


def refusal(body: object) -> str:
    with pytest.raises(UnprocessableError) as caught:
        decode_commit(headers("Commit", 1), dumps(CBOR, {"v1": body}))
    return caught.value.code


def test_a_commit_that_does_not_say_when_it_was_edited_is_the_newest_that_may_have_edits() -> None:
    assert [read_edited({"X-Edited": "3"}, 7), read_edited({"X-Edited": "0"}, 7)] == [3, 0]
    assert read_edited({}, 7) == read_edited(None, 7) == 7


def test_where_a_log_begins_is_kept_in_commits_that_need_nothing_else_of_history() -> None:
    """Readers need the position until the change set has a checkpoint of its own."""
    commit = Commit("c", 4, Kind.DVU, 1, "o", None, 4, begin=3)
    found, payload = encode_commit(commit)
    assert found[MESSAGE_VERSION] == "3"
    assert decode_commit(found, payload).begin == 3


@pytest.mark.parametrize(
    "body",
    [COMMIT | {"kind": "merge"}, COMMIT | {"requests": [[1, "r", "postponed"]]}],
    ids=["kind", "outcome"],
)
def test_a_word_this_program_does_not_know_is_left_to_a_newer_one(body: object) -> None:
    with pytest.raises(UnsupportedVersion):
        decode_commit(headers("Commit", 1), dumps(CBOR, {"v1": body}))


def test_a_newer_version_of_a_commit_is_left_to_a_newer_program() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_commit(headers("Commit", COMMIT_TYPE.current + 1), b"")


@pytest.mark.parametrize("found", [None, {}, headers("EnqueueUpdatesRequest", 2), headers("commit", 1)], ids=repr)
def test_what_does_not_claim_to_be_a_commit_is_foreign(found: dict[str, str] | None) -> None:
    with pytest.raises(UnprocessableError) as caught:
        decode_commit(found, b"anything")
    assert caught.value.code == "foreign"


@pytest.mark.parametrize(
    "fields",
    [
        {"previous": -1},
        {"previous": None},
        {"kind": 1},
        {"covers": -1},
        {"more": 1},
        {"applied": {"stream": "s"}},
        {"applied": ["s", 1]},
        {"requests": {}},
        {"requests": [[]]},
        {"requests": [[1, "r"]]},
        {"requests": [["1", "r", "success"]]},
        {"requests": [[1, None, "success"]]},
        {"requests": [[1, "r", ["success"]]]},
        {"requests": [[1, "r", "success", -1]]},
        {"requests": [[1, "r", "success", 1, "", "", ""]]},
        {"requests": [{"sequence": 1}]},
        {"delta": []},
        {"delta": {}},
        {"delta": {"updates": [SET], "computed": []}},
        {"delta": {"computed": []}},
        {"kind": "dvu", "delta": {"updates": [SET]}},
        {"kind": "dvu", "delta": {"computed": {}}},
        {"kind": "dvu", "delta": {"computed": [{"id": "a"}]}},
        {"kind": "dvu", "delta": {"computed": [{"id": "a", "value": 1, "error": None}]}},
        {"kind": "dvu", "delta": {"computed": [{"id": "a", "error": {"code": "x", "message": "y"}}]}},
        {"kind": "dvu", "delta": {"computed": [{"id": "a", "error": {"code": "x", "message": "y", "origin": 1}}]}},
        {"kind": "dvu", "delta": {"computed": [{"id": "a", "error": FAULT | {"more": 1}}]}},
        {"kind": "dvu", "delta": {"computed": [["a", 1]]}},
        {"delta": {"address": ADDRESS}},
        {"delta": {"address": ADDRESS, "size": -1}},
        {"delta": {"address": ADDRESS, "size": 1, "updates": []}},
        {"checkpoint": {"address": ADDRESS, "sequence": 1}},
        {"attempt": {"sequence": 1, "count": 1}},
    ],
    ids=repr,
)
def test_a_damaged_commit_is_malformed(fields: dict[str, Any]) -> None:
    assert refusal(COMMIT | fields) == "malformed"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"delta": {"address": "x", "size": 1}}, "invalid_address"),
        ({"checkpoint": {"address": "x", "sequence": 1, "size": 1}}, "invalid_address"),
        ({"delta": {"updates": [{"op": "set"}]}}, "invalid_update"),
        ({"kind": "dvu", "delta": {"computed": [{"id": "", "value": 1}]}}, "invalid_update"),
    ],
    ids=repr,
)
def test_the_content_of_a_commit_is_checked(fields: dict[str, Any], code: str) -> None:
    assert refusal(COMMIT | fields) == code


def test_a_commit_with_thousands_of_updates_is_read_beyond_the_bounds_of_a_request() -> None:
    delta = tuple(Set(str(number), "x" * 300_000) for number in range(3))
    commit = Commit("c", 0, Kind.REBASE, 1, "o", None, None, delta=delta)
    assert decode_commit(*encode_commit(commit)) == commit


def test_a_delta_that_was_loaded_from_its_blob_stays_there() -> None:
    commit = Commit("c", 0, Kind.REBASE, 1, "o", None, None, delta_blob=BlobRef(ADDRESS, 7))
    loaded = replace(commit, delta=(Set("a", 1),))
    assert encode_commit(loaded) == encode_commit(commit)


def test_rows_of_requests_leave_out_their_empty_ends() -> None:
    decisions = (
        Decision(1, RequestId("a"), Outcome.SUCCESS),
        Decision(2, RequestId("b"), Outcome.SUCCESS, 3),
        Decision(3, RequestId(""), Outcome.DEAD, 0, "malformed"),
        Decision(4, RequestId("d"), Outcome.ERROR, 0, "", "why"),
    )
    commit = Commit("c", 0, Kind.REBASE, 1, "o", None, None, decisions)
    found, payload = encode_commit(commit)
    wire: Any = loads(ContentType.CBOR, payload)
    assert [len(row) for row in wire["v1"]["requests"]] == [3, 4, 6, 6]
    assert decode_commit(found, payload) == commit


def test_the_sweeper_reads_headers_only() -> None:
    commit = Commit("c", 0, Kind.REBASE, 1, "o", Applied("2026-01-02T03:04:05Z", 7), None, debt=3)
    found, _ = encode_commit(commit)
    assert (found[APPLIED], found[DEBT]) == ("2026-01-02T03:04:05Z:7", "3")
    assert read_sweep_headers(found) == (Applied("2026-01-02T03:04:05Z", 7), 3)
    without, _ = encode_commit(replace(commit, applied=None))
    assert read_sweep_headers(without) == (None, 3)


def test_overviews_learn_from_a_header_how_far_derived_values_are_correct() -> None:
    branch = BranchSummary("", 0, BranchStatus.OPEN, 0, 0, "main", 7)
    usual = Commit("c", 4, Kind.REBASE, 1, "o", None, None)
    for covers, kind, header in (
        (None, Kind.REBASE, None),
        (3, Kind.REBASE, "3"),
        (0, Kind.DVU, "0"),
        (None, Kind.CREATE, ""),
        (7, Kind.CREATE, "7"),
    ):
        commit = replace(usual, covers=covers, kind=kind, debt=int(kind is Kind.REBASE and covers is not None))
        commit = replace(commit, branch=branch if kind is Kind.CREATE else None)
        headers = encode_commit(commit)[0] | covers_header(commit)
        assert headers.get("X-Covers") == header
        assert read_covers(headers, 9) == (9 if covers is None else covers)
        check_commit(commit, headers, encode_commit(commit)[1])
        with pytest.raises(UnprocessableError):
            check_commit(commit, headers | {"X-Covers": "8"}, encode_commit(commit)[1])


def test_only_the_payload_tells_how_far_derived_values_are_correct_if_an_older_server_owed_or_created() -> None:
    owed = Commit("c", 4, Kind.REBASE, 1, "o", None, 3, debt=1)
    created = replace(owed, debt=0, branch=BranchSummary("", 0, BranchStatus.OPEN, 0, 0, "main", 7))
    assert [read_covers(encode_commit(one)[0], 9) for one in (owed, created, replace(owed, debt=0))] == [None, None, 9]
    used = replace(created, branch=BranchSummary("", 0, BranchStatus.OPEN, 0, 0, "main", 7, birth=8))
    assert read_covers(encode_commit(used)[0], 9) == 9


@pytest.mark.parametrize(
    "found",
    [
        None,
        {APPLIED: "s:1"},
        {DEBT: "1"},
        {APPLIED: "s:", DEBT: "1"},
        {APPLIED: "7s", DEBT: "1"},
        {APPLIED: "s:1", DEBT: "-1"},
        {APPLIED: "s:1", DEBT: "٣"},
        {APPLIED: "s:1", DEBT: "9" * 5000},
    ],
    ids=repr,
)
def test_damaged_headers_for_the_sweeper_are_refused(found: dict[str, str] | None) -> None:
    with pytest.raises(UnprocessableError):
        read_sweep_headers(found)


def test_functions_that_the_writer_lacked_travel_in_a_header_alone() -> None:
    names = ("a,b", "ü\n", '"')
    without = Commit("ID", 3, Kind.REBASE, 5, "me", None, 3)
    found, payload = encode_commit(replace(without, unknown=names))
    assert found["X-Unknown-Functions"].isascii()
    assert found["X-Unknown-Functions"].isprintable()
    assert decode_commit(found, payload).unknown == names
    bare, same = encode_commit(without)
    assert (payload, found.keys() - bare.keys()) == (same, {"X-Unknown-Functions"})


@pytest.mark.parametrize("text", ["", "[", "3", "{}", "[1, null, []]", "[" * 100_000], ids=lambda text: text[:9])
def test_a_header_of_functions_that_is_damaged_names_none(text: str) -> None:
    assert read_unknown({"X-Unknown-Functions": text}) == ()


def test_digests_of_requests_travel_in_a_header_alone() -> None:
    decisions = [
        Decision(at, RequestId(f"r{at}"), Outcome.SUCCESS, 1, digest=bytes([at] * 8) if at % 2 else b"")
        for at in range(5)
    ]
    commit = Commit("ID", 3, Kind.REBASE, 5, "me", None, 3, requests=tuple(decisions))
    bare = replace(commit, requests=tuple([replace(one, digest=b"") for one in decisions]))
    found, payload = encode_commit(commit)
    assert encode_commit(bare) == ({name: found[name] for name in found if name != "X-Digests"}, payload)
    assert [one.digest for one in decode_commit(found, payload).requests] == [one.digest for one in decisions]
    for damaged in ("", "?", "AAAA", found["X-Digests"][4:]):
        read = decode_commit({**found, "X-Digests": damaged}, payload)
        assert [one.digest for one in read.requests] == [b""] * 5


BLOB = BlobRef(ADDRESS, 9)
BEFORE: list[dict[str, Any]] = [{"before": (Set("a", 1),)}, {"before_blob": BLOB, "before": ()}]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("more", [{}, {"begin": 3}])  # the second one is read by the model
def test_a_reader_that_only_folds_does_not_read_what_a_commit_replaced(
    before: dict[str, Any], more: dict[str, Any]
) -> None:
    commit = Commit("c", 4, Kind.REBASE, 1, "o", None, 4, delta=(Set("a", 2),), **before, **more)
    message = encode_commit(commit)
    assert decode_commit(*message) == commit
    folded = decode_commit(*message, history=False, sequence=7)
    assert folded == replace(commit, before=None, before_blob=None)
    assert folded.sequence == 7


def test_damage_to_what_a_commit_replaced_keeps_nobody_from_folding_it() -> None:
    body = COMMIT | {"delta": {"updates": [SET]}, "before": {"updates": [SET | {"op": "sit"}]}}
    message = headers("Commit", 3), dumps(CBOR, {"v3": body})
    with pytest.raises(UnprocessableError):
        decode_commit(*message)
    assert decode_commit(*message, history=False).delta == (Set("a", 1),)
