"""The headers of dead letters: they mean nothing to NATS, give the reason, and preserve the headers of the request."""

import pytest

from rebaser_core.commit import Decision, Outcome
from rebaser_core.ids import ChangeSetKey, RequestId, sequence_id
from rebaser_core.messages.dead_letter import claimed_id, dead_headers, read_letter, read_redrive, redriven_headers

KEY = ChangeSetKey("ws", "cs")
DEAD = Decision(9, RequestId("r"), Outcome.DEAD, 0, "malformed", "not\nCBOR \u2713", 2, 4)
ORIGINAL = {
    "X-CONTENT-TYPE": "application/cbor",
    "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
    "Nats-Msg-Id": "ws.cs.1",
    "Nats-Expected-Last-Sequence": "5",
    "nats-ttl": "1s",
    "bad name": "x",
    "X-Long": "a" * 5000,
    "X-Line": "a\r\nNats-Rollup: all",
    "X-Reply-Inbox": "_INBOX.gone",
    "X-Redrive": "2",
    "x-reason": "none at all",
    "X-Original-Sequence": "1",
    "X-Payload-Address": "sha256:0",
}


def headers() -> dict[str, str]:
    return dead_headers(ORIGINAL, DEAD, key=KEY, subject="rebaser.requests.ws.cs", server="s1", at_ms=77)


def test_a_dead_letter_keeps_the_headers_of_the_original_but_none_that_commands_nats() -> None:
    kept = headers()
    assert [name for name in kept if name.lower().startswith("nats-")] == ["Nats-Msg-Id"]
    assert kept["Nats-Msg-Id"] == "ws.cs.r@9"
    assert kept["X-Original-Nats-Msg-Id"] == "ws.cs.1"
    assert kept["X-MESSAGE-TYPE"] == "EnqueueUpdatesRequest"
    assert "bad name" not in kept
    assert "X-Payload-Address" not in kept
    assert all(value.isprintable() and len(value) <= 1024 for value in kept.values())


def test_a_dead_letter_says_why_where_and_how_often() -> None:
    letter = read_letter(3, KEY, headers(), 10)
    assert (letter.request_id, letter.code, letter.reason) == ("r", "malformed", "not?CBOR ?")
    assert (letter.attempts, letter.redrive, letter.server, letter.dead_at_ms) == (4, 2, "s1", 77)
    assert (letter.sequence, letter.request_sequence, letter.size, letter.payload_address) == (3, 9, 10, None)


def test_what_is_redriven_has_its_own_headers_and_no_command_to_nats() -> None:
    sent = redriven_headers(read_letter(3, KEY, headers(), 10))
    assert sent == {
        "X-CONTENT-TYPE": "application/cbor",
        "X-MESSAGE-TYPE": "EnqueueUpdatesRequest",
        "X-Long": "a" * 1024,
        "X-Line": "a??Nats-Rollup: all",
        "x-reason": "none at all",
        "X-Original-Sequence": "1",
        "X-Payload-Address": "sha256:0",
        "X-Redrive": "3",
        "X-Dead-At-Ms": "77",
        "Nats-Msg-Id": "ws.cs.r#3@3",
    }


def test_two_dead_letters_are_two_messages_though_their_requests_had_the_same_place_in_two_streams() -> None:
    unread = Decision(9, sequence_id(9), Outcome.DEAD, 0, "malformed", "")
    told = dead_headers({}, unread, key=KEY, subject="s", server="s1", at_ms=7)
    sent = [redriven_headers(read_letter(sequence, KEY, told, 0))["Nats-Msg-Id"] for sequence in (3, 4)]
    assert sent == ["ws.cs.@9#1@3", "ws.cs.@9#1@4"]


def test_a_message_that_is_no_dead_letter_of_ours_is_read_all_the_same() -> None:
    letter = read_letter(3, KEY, {"X-Attempts": "many", "X-Dead-At-Ms": "9" * 30, "X-Redrive": "-1"}, 0)
    assert (letter.request_id, letter.attempts, letter.dead_at_ms, letter.redrive) == ("", 0, 0, 0)


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("12", 12), ("0", 0), ("", 0), ("1e3", 0), ("9" * 7, 0)])
def test_a_redrive_header_is_a_count_or_nothing(text: str, count: int) -> None:
    assert read_redrive({"X-Redrive": text}) == count


def test_the_dead_letter_of_what_could_not_be_read_has_the_id_that_came_with_it() -> None:
    unread = Decision(9, sequence_id(9), Outcome.DEAD, 0, "malformed", "")
    for given, known in (("ws.cs.r1", "r1"), ("r1", "r1"), ("no id", "@9")):
        told = dead_headers({"Nats-Msg-Id": given}, unread, key=KEY, subject="s", server="s1", at_ms=7)
        assert read_letter(3, KEY, told, 0).request_id == known
        # The sender cannot choose the id by which the stream recognizes duplicates.
        assert told["Nats-Msg-Id"] == "ws.cs.@9@9"


@pytest.mark.parametrize(
    ("message_id", "request_id"),
    [
        ("ws.cs.r1", "r1"),
        ("ws.cs.r1#2", "r1"),
        ("r1", "r1"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("ws.other.r1", None),
        ("xws.cs.r1", None),
        ("ws.cs.", None),
        ("", None),
    ],
)
def test_the_id_of_a_request_that_must_not_be_read(message_id: str, request_id: str | None) -> None:
    assert claimed_id({"Nats-Msg-Id": message_id}, KEY) == request_id
