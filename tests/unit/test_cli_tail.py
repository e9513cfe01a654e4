"""The lines and objects of `rebaser tail`: they are bounded, contain no values, and no control sequences of
terminals."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rebaser.cli.output.entry_format import MAX_LISTED, entry_line, entry_object
from rebaser_client.log.entries import Entry
from rebaser_core.commit import Applied, BlobRef, Commit, Decision, Kind, Outcome
from rebaser_core.encoding.envelope import Headers
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest
from rebaser_core.updates import Recompute, Set, Unset

NOW = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
TIME_NS = int(NOW.timestamp()) * 1_000_000_000 + 7_000_000
KEY = ChangeSetKey("shop", "main")


def entry(content: Commit | EnqueueUpdatesRequest | None, headers: Headers | None = None) -> Entry:
    return Entry(12, TIME_NS, "rebaser.x.shop.main", KEY, 2048, headers or {}, content, None)


COMMIT = Commit(
    "C1",
    11,
    Kind.REBASE,
    0,
    "server-1",
    Applied("x", 9),
    None,
    requests=(
        Decision(8, RequestId("R8"), Outcome.SUCCESS, 2),
        Decision(9, RequestId("R9"), Outcome.DEAD, code="malformed", message="bad \x1b[31m"),
    ),
    delta=(Set("secret/price", 4711), Unset("qty")),
)
REQUEST = EnqueueUpdatesRequest(RequestId("R1"), "shop", "main", (Set("a\x1b]0;x\x07", "classified"), Unset("b")))


def test_a_commit() -> None:
    line = entry_line(entry(COMMIT), columns=False)
    assert line.split("\t") == [
        "12",
        "2026-02-03T04:05:06.007Z",
        "shop/main",
        "rebase",
        "2.0 kB",
        "2 requests (1 success, 1 dead); 2 changes: secret/price, qty; by server-1",
    ]
    found = entry_object(entry(COMMIT))
    assert (found["sequence"], found["kind"], found["applied"], found["changed"]) == (12, "rebase", 9, 2)
    assert [one["outcome"] for one in found["requests"]] == ["success", "dead"]
    blob = Commit("C2", 12, Kind.DVU, 0, "s", None, 12, delta_blob=BlobRef("sha256:x", 5_000_000))
    assert "changes in a blob of 5.0 MB" in entry_line(entry(blob), columns=True)


def test_a_request() -> None:
    assert entry_object(entry(REQUEST))["updates"][1] == {"op": "unset", "id": "b"}
    assert "R1; 2 updates" in entry_line(entry(REQUEST), columns=False)


def test_what_is_to_be_recomputed() -> None:
    asked = EnqueueUpdatesRequest(RequestId("R1"), "shop", "main", (), recompute=Recompute())
    assert entry_line(entry(asked), columns=False).endswith("\tR1; recompute all derived values")
    assert entry_object(entry(asked))["recompute"] == {"function": None}
    commit = replace(COMMIT, requests=(), delta=(), recompute=(Recompute(), Recompute("tax\x1b[31m")))
    assert "\trecompute all derived values, values of tax\\x1b[31m; by server-1" in entry_line(
        entry(commit), columns=False
    )
    assert entry_object(entry(commit))["recompute"][1] == {"function": "tax\x1b[31m"}


def test_a_dead_letter() -> None:
    headers = {"X-Request-Id": "R9", "X-Reason-Code": "malformed", "X-Reason": "no version", "X-Server": "one"}
    line = entry_line(entry(None, headers | {"X-Reply-Inbox": "_INBOX.theirs"}), columns=False)
    assert line.endswith("\tdead\t2.0 kB\tR9 malformed: no version (one)")
    found = entry_object(entry(None, headers | {"X-Reply-Inbox": "_INBOX.theirs"}))
    assert (found["requestId"], found["code"], found["server"]) == ("R9", "malformed", "one")
    assert "theirs" not in json.dumps(found)


@pytest.mark.parametrize("content", [COMMIT, REQUEST])
def test_no_value_and_no_control_character_is_shown(content: Commit | EnqueueUpdatesRequest) -> None:
    line = entry_line(entry(content), columns=True)
    for secret in ("4711", "classified"):
        assert secret not in line
        assert secret not in json.dumps(entry_object(entry(content)))
    assert line.isprintable()


def test_what_is_shown_is_bounded() -> None:
    updates = tuple(Unset("x" * 500 + str(number)) for number in range(5000))
    request = entry(EnqueueUpdatesRequest(RequestId("R1"), "shop", "main", updates))
    assert len(entry_line(request, columns=True)) < 400
    found = entry_object(request)
    assert (found["updateCount"], len(found["updates"])) == (5000, MAX_LISTED)
    assert max(len(one["id"]) for one in found["updates"]) <= 200


def test_what_cannot_be_read_says_why() -> None:
    problem = UnprocessableError("no header\n\x1b[2J", code="malformed")
    damaged = Entry(1, TIME_NS, "rebaser.requests.shop.main", KEY, 3, {}, None, problem)
    assert entry_object(damaged)["problem"]["code"] == "malformed"
    line = entry_line(damaged, columns=False)
    assert line.split("\t")[3] == "unreadable"
    assert "\x1b" not in line
    assert "\n" not in line
