"""A reply goes only to a literal inbox under the reply prefix, and states what the log has."""

import pytest

from rebaser.change_set.replies import inbox_allowed, reply, response
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
