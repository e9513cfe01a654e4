"""A reply goes to a literal inbox under the prefix, and nowhere else; it says what the log says."""

import pytest

from rebaser.change_set.replies import inbox_allowed, response
from rebaser_core.commit import Decision, Outcome
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import Conflicts, Failure, Success

KEY = ChangeSetKey("ws", "cs")


@pytest.mark.parametrize("inbox", ["_INBOX.a", "_INBOX.a.b-c.1", "_INBOX.$x"])
def test_a_literal_subject_under_the_prefix_is_an_inbox(inbox: str) -> None:
    assert inbox_allowed(inbox, "_INBOX")


@pytest.mark.parametrize(
    "inbox",
    [
        "", "_INBOX", "_INBOX.", "_INBOX.>", "_INBOX.*", "_INBOX.a.*.b", "_INBOX..a", "_INBOX.a.", "_INBOX.a b",
        "_INBOX.a\tb", "_INBOX.a\r\nPUB x", "_INBOXY.a", "rebaser.commits.ws.cs", "rebaser.tasks.ws.cs.process",
        "$JS.API.STREAM.DELETE.REBASER_COMMITS", "_INBOX.\u00e9", "_INBOX." + "a" * 300,
    ],
)  # fmt: skip
def test_anything_else_is_not(inbox: str) -> None:
    assert not inbox_allowed(inbox, "_INBOX")


def test_the_answer_says_what_the_log_says() -> None:
    def status(*decision: object) -> object:
        return response(KEY, Decision(1, "r", *decision), 7).status  # type: ignore[arg-type]

    assert status(Outcome.SUCCESS, 3) == Success(3, 7)
    assert status(Outcome.CONFLICTS, 0, "conflicts", "gone: x") == Conflicts("gone: x", 7)
    assert status(Outcome.DEAD, 0, "malformed", "bad") == Failure("malformed", "bad", 7)
    assert response(KEY, Decision(1, "@1", Outcome.DEAD), 7).id == ""
