"""How long a request is repeated: never for longer than servers remember what became of it."""

from rebaser_client.sender import REPEAT_FOR, Outgoing
from rebaser_core.envelope import MESSAGE_ID
from rebaser_core.ids import ChangeSetKey


def outgoing() -> Outgoing:
    return Outgoing(ChangeSetKey("ws", "cs"), "id", "_INBOX.a", {}, b"")


def test_the_time_counts_from_when_a_request_was_last_seen_to_wait() -> None:
    request = outgoing()
    request.is_undecided(10.0)
    request.is_undecided(20.0)
    assert request.repeat_until == 20.0 + REPEAT_FOR


def test_a_copy_that_waits_gives_no_more_time() -> None:
    """The first one may have been decided long ago; servers count from then."""
    request = outgoing()
    request.is_undecided(10.0)
    request.copy()
    request.is_undecided(200.0)
    assert request.repeat_until == 10.0 + REPEAT_FOR


def test_a_copy_is_another_message_to_the_stream() -> None:
    request = outgoing()
    seen = {request.headers[MESSAGE_ID]}
    for _ in range(2):
        request.copy()
        seen.add(request.headers[MESSAGE_ID])
    assert len(seen) == 3
