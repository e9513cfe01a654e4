"""Tests what the calls for rebases and resolutions send, and what they refuse without asking a server."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser_client.log.branches import BranchConflict, BranchInfo, FoundBranch
from rebaser_client.operations.rebases import RebaseOperations
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesResponse, Success
from rebaser_core.updates import Remove, Set

pytestmark = pytest.mark.anyio

IDS = ("a", "b", "c")
CONFLICTS = (
    BranchConflict("a", Set("a", 0), Set("a", 1), Set("a", 2)),
    BranchConflict("b", Set("b", 0), None, Set("b", 2)),
    BranchConflict("c", None, Set("c", 1), None),
)


class Calls:
    """A client of one branch that records what is sent."""

    def __init__(self, **about: Any) -> None:
        self.status: Any = about.pop("status_of_target", "open")
        known: dict[str, Any] = {"target": "main", "base": 10, "conflicts": 3} | about
        self.info = BranchInfo("ws", "fix", 20, datetime(2026, 1, 1, tzinfo=UTC), **known)
        self.sent: list[tuple[Any, ...]] = []

    async def find(self, _: object) -> FoundBranch:
        target = BranchInfo("ws", "main", 10, datetime(2026, 1, 1, tzinfo=UTC), status=self.status)
        return FoundBranch(self.info, cast("Any", None), target)

    async def conflicts(self, *_: object, **__: object) -> Any:
        return self.info, CONFLICTS

    async def enqueue_updates_with_reply(self, *given: Any, **named: Any) -> EnqueueUpdatesResponse:
        self.sent.append((given[2], named))
        return EnqueueUpdatesResponse(RequestId("r"), "ws", "fix", Success(2, 21, 15, 1))


def client(**about: Any) -> tuple[Any, Calls]:
    calls = Calls(**about)
    operations = type("Client", (RebaseOperations,), {"__abstractmethods__": frozenset()})
    made: Any = object.__new__(operations)
    made.enqueue_updates_with_reply = calls.enqueue_updates_with_reply
    made._branches = SimpleNamespace(conflicts=calls.conflicts, find=calls.find)
    return made, calls


@pytest.mark.parametrize(
    ("about", "options", "asks"),
    [
        ({}, {}, False),
        ({"behind": True}, {}, True),
        ({"status_of_target": "deleted"}, {}, True),  # the server reports it
        ({"status": "abandoned"}, {}, True),  # the server reports that the branch is closed
        ({}, {"onto": "root"}, True),
        ({}, {"strategy": "theirs"}, True),  # settles the recorded conflicts
        ({"conflicts": 0}, {"strategy": "theirs"}, False),
        ({"conflicts": 0, "behind": True}, {"strategy": "ours"}, True),
    ],
)
async def test_a_rebase_asks_only_if_there_is_anything_to_do(
    about: dict[str, Any], options: dict[str, Any], asks: bool
) -> None:
    made, calls = client(**about)
    done = await made.rebase("ws", "fix", **options)
    assert bool(calls.sent) is asks
    found = (done.commit, done.target, done.base, done.updates, done.conflicts)
    nothing = (None, "main", 10, 0, calls.info.conflicts)
    assert found == ((21, options.get("onto", "main"), 15, 2, 1) if asks else nothing)


async def test_pages_of_conflicts_follow_one_another() -> None:
    made, _ = client()
    after, found = "", list[str]()
    while page := (await made.conflicts("ws", "fix", after=after, limit=2)).conflicts:
        found += [one.id for one in page]
        after = page[-1].id
    assert found == list(IDS)


@pytest.mark.parametrize(
    ("ids", "take", "updates"),
    [
        (None, "fix", [Set("a", 1), Remove("b"), Set("c", 1)]),
        (None, "main", [Set("a", 2), Set("b", 2), Remove("c")]),
        (["b", "b"], "main", [Set("b", 2)]),
    ],
)
async def test_a_side_is_taken_as_it_was_when_the_conflicts_were_read(
    ids: list[str] | None, take: str, updates: list[Any]
) -> None:
    made, calls = client()
    await made.resolve("ws", "fix", ids, take=take)
    [(sent, named)] = calls.sent
    assert (sent, named["expect_at"]) == (updates, 20)


async def test_new_definitions_are_those_of_the_ids_that_are_named() -> None:
    made, calls = client()
    await made.resolve("ws", "fix", updates=[Set("b", 7)])
    assert cast("Any", calls.sent[0][0]) == [Set("b", 7)]
    refused: list[dict[str, Any]] = [
        {"ids": ["a", "b"], "updates": [Set("a", 7)]},  # one named id would stay in conflict
        {"ids": ["a"], "updates": [Set("a", 7), Set("b", 7)]},
        {"ids": ["a", "d"], "take": "main"},
        {"take": "root"},
        {"take": "main", "updates": [Set("a", 7)]},
        {},
    ]
    for given in refused:
        with pytest.raises(UnprocessableError):
            await made.resolve("ws", "fix", **given)
    assert len(calls.sent) == 1
