"""A reply goes only to a literal inbox under the reply prefix, and states what the log has."""

import pytest

from rebaser.change_set.replies import inbox_allowed, plain_reply, reply, response
from rebaser_client.nats.header_lines import encode_headers
from rebaser_core.commit import Decision, Outcome
from rebaser_core.encoding.envelope import CBOR, CONTENT_TYPE, JSON, ContentType
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import Conflicts, EnqueueUpdatesResponse, Failure, Success, decode

KEY = ChangeSetKey("ws", "cs")


@pytest.mark.parametrize("inbox", ["_INBOX.a", "_INBOX.a.b-c.1", "_INBOX.$x", "_INBOX." + "a" * 249])
def test_a_literal_subject_under_the_prefix_is_an_inbox(inbox: str) -> None:
    assert inbox_allowed(inbox, "_INBOX")


@pytest.mark.parametrize(
    "inbox",
    [
        "", "_INBOX", "_INBOX.", "_INBOX.>", "_INBOX.*", "_INBOX.a.*.b", "_INBOX..a", "_INBOX.a.", "_INBOX.a b",
        "_INBOX.a\tb", "_INBOX.a\r\nPUB x", "_INBOXY.a", "rebaser.commits.ws.cs", "rebaser.tasks.ws.cs.process",
        "$JS.API.STREAM.DELETE.REBASER_COMMITS", "_INBOX.\u00e9", "_INBOX." + "a" * 250,
    ],
)  # fmt: skip
def test_anything_else_is_not(inbox: str) -> None:
    assert not inbox_allowed(inbox, "_INBOX")


def test_the_answer_says_what_the_log_says() -> None:
    def status(*decision: object) -> object:
        return response(None, KEY, Decision(1, "r", *decision), 7).status  # type: ignore[arg-type]

    assert status(Outcome.SUCCESS, 3) == Success(3, 7)
    assert status(Outcome.CONFLICTS, 0, "conflicts", "gone: x") == Conflicts("gone: x", 7)
    assert status(Outcome.DEAD, 0, "malformed", "bad") == Failure("malformed", "bad", 7)


@pytest.mark.parametrize(
    ("recorded", "given", "id_"),
    [
        ("r", "", "r"),
        ("r", "another", "r"),
        ("@1", "", ""),
        ("@1", "no id", ""),
        ("@1", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("@1", "ws.cs.r1", "r1"),
    ],
)
def test_an_answer_names_its_request(recorded: str, given: str, id_: str) -> None:
    headers, payload = reply({"Nats-Msg-Id": given}, KEY, Decision(1, RequestId(recorded), Outcome.DEAD), 7)
    assert headers.get("Nats-Msg-Id", "") == id_
    assert decode(headers, payload, expect=EnqueueUpdatesResponse).id == id_


@pytest.mark.parametrize("recorded", ["r", "@1"])
@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("application/json", JSON),
        ("application/json; charset=utf-8", JSON),
        ("application/cbor", CBOR),
        ("text/plain", CBOR),
    ],
)
def test_an_answer_has_the_content_type_of_its_request(asked: str, answered: ContentType, recorded: str) -> None:
    decision = Decision(1, RequestId(recorded), Outcome.DEAD)
    headers, payload = reply({CONTENT_TYPE: asked}, KEY, decision, 7)
    assert headers[CONTENT_TYPE] == answered
    assert payload.startswith(b"{") == (answered is JSON)


def test_a_plain_reply_has_the_bytes_of_the_reply() -> None:
    asked, decision = {CONTENT_TYPE: CBOR}, Decision(1, RequestId("r1"), Outcome.SUCCESS, 300)
    headers, payload = reply(asked, KEY, decision, 70_000)
    assert plain_reply(asked, KEY, decision, 70_000) == (encode_headers(headers), payload)


@pytest.mark.parametrize(
    "decision",
    [
        Decision(1, RequestId("r"), Outcome.DEAD, 0, "malformed", "bad"),
        Decision(1, RequestId("r"), Outcome.CONFLICTS, 0, "conflicts", "gone: x"),
        Decision(1, RequestId("@1"), Outcome.SUCCESS, 1),
        Decision(1, RequestId("r"), Outcome.SUCCESS, 1, position=3),
        Decision(1, RequestId("r"), Outcome.SUCCESS, 1, unresolved=3),
    ],
    ids=["dead", "conflicts", "without an id", "of an action", "with conflicts left"],
)
def test_no_other_reply_is_plain(decision: Decision) -> None:
    assert plain_reply({CONTENT_TYPE: CBOR}, KEY, decision, 7) is None


@pytest.mark.parametrize("headers", [{}, {CONTENT_TYPE: JSON}, {CONTENT_TYPE: "text/plain"}], ids=str)
def test_a_plain_reply_is_in_cbor(headers: dict[str, str]) -> None:
    assert plain_reply(headers, KEY, Decision(1, RequestId("r"), Outcome.SUCCESS, 1), 7) is None
