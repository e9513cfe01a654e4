"""The patch of a revert is complete or refused, whatever lies between, before and after the commits of its range."""

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from rebaser.change_set.readers import revert_reader
from rebaser.runtime.context import Context
from rebaser_core.branches.merge import PatchEntry
from rebaser_core.commit import BlobRef, Commit, Computed, Decision, Kind, Outcome, Reverts
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.limits import Limits
from rebaser_core.updates import Remove, Set, Update

pytestmark = pytest.mark.anyio

BACK_A = PatchEntry("a", Set("a", 1), None)


def rebase(sequence: int, previous: int, *delta: Update, before: tuple[Update, ...] | None = (), **more: Any) -> Commit:
    decisions = more.pop("requests", (Decision(sequence, RequestId("r"), Outcome.SUCCESS, len(delta)),))
    given = {"requests": decisions, "delta": delta, "before": before, "sequence": sequence}
    return Commit(f"c{sequence}", previous, Kind.REBASE, 0, "o", None, 0, **given, **more)


def dvu(sequence: int, previous: int) -> Commit:
    delta = (Computed("derived", 1),)
    return Commit(f"c{sequence}", previous, Kind.DVU, 0, "o", None, 0, delta=delta, sequence=sequence)


async def patch_of(
    monkeypatch: pytest.MonkeyPatch, log: dict[int, Commit | None], reverts: Reverts, newest: int = 100, limit: int = 10
) -> tuple[PatchEntry, ...]:
    """Return the patch from a log with these messages; None is a message that is not a commit. A read beyond the last
    one fails."""

    class Consumer:
        def __init__(self, *_: object, start: int) -> None:
            self.start = start

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def __aiter__(self) -> AsyncIterator[SimpleNamespace]:
            for sequence in log:
                if sequence >= self.start:
                    yield SimpleNamespace(stream_sequence=sequence, headers={}, data=b"x" * 100)
            raise AssertionError("it waits for a message that nobody sends")

    async def loaded(commit: Commit) -> Commit:
        return commit

    monkeypatch.setattr(revert_reader, "OrderedConsumer", Consumer)
    reader = SimpleNamespace(decode=lambda sequence, *_: log[sequence], with_delta=loaded, with_before=loaded)
    settings = SimpleNamespace(limits=Limits(max_updates=limit))
    subjects = SimpleNamespace(commits_stream="commits", commits=lambda _: "commits.ws.cs")
    context = SimpleNamespace(js=None, reader=reader, settings=settings, subjects=subjects)
    return await revert_reader.read_patch(cast("Context", context), ChangeSetKey("ws", "cs"), reverts, newest)


async def refused(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> str:
    with pytest.raises(UnprocessableError) as caught:
        await patch_of(monkeypatch, *args, **options)
    return caught.value.code


async def test_a_range_ends_where_it_says_though_the_next_message_lies_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    log: dict[int, Commit | None] = {5: rebase(5, 2, Set("a", 1)), 9: rebase(9, 5, Set("b", 1))}
    for first, last in ((5, 5), (5, 8), (3, 8)):
        assert await patch_of(monkeypatch, log, Reverts(first, last)) == (BACK_A,)
    assert await refused(monkeypatch, log, Reverts(6, 8)) == "no_such_position"
    assert await patch_of(monkeypatch, log, Reverts(3, 7), newest=9) == (BACK_A,)


@pytest.mark.parametrize("kind", [None, Kind.CREATE, Kind.MARK, Kind.REPLAY, Kind.DVU])
async def test_a_request_must_be_one_that_the_commit_decided_even_if_the_commit_has_no_edits(
    monkeypatch: pytest.MonkeyPatch, kind: Kind | None
) -> None:
    made = replace(rebase(5, 2, requests=(Decision(5, RequestId("r"), Outcome.SUCCESS),)), kind=kind or Kind.MARK)
    log: dict[int, Commit | None] = {5: None if kind is None else made}
    assert await refused(monkeypatch, log, Reverts(5, 5, RequestId("other"))) == "no_such_request"
    if kind is not None:
        assert await patch_of(monkeypatch, log, Reverts(5, 5, RequestId("r"))) == ()


async def test_updates_and_foreign_messages_in_between_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    log = {3: rebase(3, 2, Set("a", 1)), 4: dvu(4, 3), 5: None, 7: rebase(7, 5, Set("b", 1))}
    found = await patch_of(monkeypatch, log, Reverts(3, 7))
    assert found == (BACK_A, PatchEntry("b", Set("b", 1), None))


@pytest.mark.parametrize("log", [
    {4: rebase(4, 3, Set("a", 1))},  # the first commit is missing
    {5: rebase(5, 4, Set("a", 1))},
    {4: None, 5: rebase(5, 4, Set("a", 1))},
    {3: rebase(3, 2, Set("a", 1)), 6: rebase(6, 4, Set("b", 1))},  # a commit in between is missing
    {3: rebase(3, 2, Set("a", 1)), 5: dvu(5, 4), 6: rebase(6, 5, Set("b", 1))},
    # A commit does not record what it replaced.
    {3: rebase(3, 2, Set("a", 1)), 6: rebase(6, 3, Set("b", 1), before=None)},
])  # fmt: skip
async def test_a_commit_that_is_missing_or_unknown_refuses_all(
    monkeypatch: pytest.MonkeyPatch, log: dict[int, Commit | None]
) -> None:
    assert await refused(monkeypatch, log, Reverts(3, 6)) == "purged"


async def test_the_limits_are_those_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    log: dict[int, Commit | None] = {
        3: rebase(3, 2, Set("a", 1), Set("b", 1)),
        4: rebase(4, 3, Set("a", 2), before=(Set("a", 1),)),
    }
    assert len(await patch_of(monkeypatch, log, Reverts(3, 4), limit=2)) == 2
    assert await refused(monkeypatch, log, Reverts(3, 4), limit=1) == "too_large"
    fits, too_large = [BlobRef("x", revert_reader.MAX_BYTES - size) for size in (100, 99)]
    for commit in (rebase(3, 2, Set("a", 1), delta_blob=fits), rebase(3, 2, Set("a", 1), before_blob=fits)):
        assert await patch_of(monkeypatch, {3: commit}, Reverts(3, 3)) == (BACK_A,)
    for commit in (rebase(3, 2, Set("a", 1), delta_blob=too_large), rebase(3, 2, Set("a", 1), before_blob=too_large)):
        assert await refused(monkeypatch, {3: commit}, Reverts(3, 3)) == "too_large"
    assert await refused(monkeypatch, {}, Reverts(3, 101)) == "no_such_position"


async def test_one_request_goes_back_to_what_those_in_front_of_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = (
        Decision(1, RequestId("one"), Outcome.SUCCESS, 2),
        Decision(2, RequestId("no"), Outcome.CONFLICTS),
        Decision(3, RequestId("two"), Outcome.SUCCESS, 3),
        Decision(4, RequestId("three"), Outcome.SUCCESS, 1),
    )
    delta = (Set("a", 1), Remove("b"), Set("a", 2), Set("b", 2), Set("c", 2), Set("c", 3))
    before = (Set("a", 0), Set("b", 0), Set("c", 0))
    log: dict[int, Commit | None] = {3: rebase(3, 2, *delta, before=before, requests=requests)}
    assert await patch_of(monkeypatch, log, Reverts(3, 3, RequestId("two"))) == (
        PatchEntry("a", Set("a", 2), Set("a", 1)),
        PatchEntry("b", Set("b", 2), None),
        PatchEntry("c", Set("c", 2), Set("c", 0)),
    )
    assert await patch_of(monkeypatch, log, Reverts(3, 3, RequestId("no"))) == ()
    assert await refused(monkeypatch, log, Reverts(3, 3, RequestId("four"))) == "no_such_request"
