"""The history that is read from a log whose commits have several requests, refused requests, or no record of what they
replaced."""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser_client.log.blame import BlameReader
from rebaser_client.log.changes import Change, LogHistory
from rebaser_client.log.positions import PositionPurged
from rebaser_core.checkpoint import Chain, PartRef
from rebaser_core.commit import Commit, Computed, Decision, Kind, Outcome
from rebaser_core.history import Mark
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Remove, Set, Update
from rebaser_core.values import Fault

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "cs")


class Log:
    """A log in memory, instead of a `CommitReader` and a `StateLoader`. Commits below `begins` are purged."""

    def __init__(self, *commits: Commit, begins: int = 1) -> None:
        self.commits = [commit for commit in commits if commit.sequence >= begins]
        self._all = commits
        self.history = LogHistory(cast("Any", self), self._states)
        self.blames = BlameReader(cast("Any", self), self._states)
        self.states_read = 0
        self.marks: list[Mark] = []

    async def _states(self) -> Any:
        return self

    async def load(self, _: ChangeSetKey, at: int | None = None) -> Any:
        self.states_read += 1
        state = ChangeSetState()
        for commit in self._all:
            if at is None or commit.sequence <= at:
                state.fold(commit.sequence, commit, weight=100)
        state.marks = self.marks
        return SimpleNamespace(state=state)

    async def load_values(
        self, key: ChangeSetKey, ids: Iterable[str], at: int | None = None, *, stale: bool
    ) -> ChangeSetState:
        assert not stale
        state: ChangeSetState = (await self.load(key, at)).state
        assert not {*ids} & {"x", "y"}
        return state

    async def load_head(self, key: ChangeSetKey) -> Any:
        return SimpleNamespace(state=(await self.load(key)).state, chain=Chain(3, (PartRef("a", 5), PartRef("b", 6))))

    async def back(self, key: ChangeSetKey, at: int | None = None) -> AsyncGenerator[Commit, None]:
        if at is not None and at < self.commits[0].sequence:
            raise PositionPurged(key, at, None)
        for commit in reversed(self.commits):
            if at is None or commit.sequence <= at:
                yield commit

    async def commit_at(self, key: ChangeSetKey, at: int | None) -> Commit | None:
        async for commit in self.back(key, at):
            return commit
        return None

    newest_message = commit_at

    async def newest_commit(self, key: ChangeSetKey, at: int) -> Any:
        commit = await self.commit_at(key, at)
        return None if commit is None else (SimpleNamespace(headers={}, sequence=commit.sequence), commit)

    async def purged(self, key: ChangeSetKey, at: int) -> PositionPurged:
        return PositionPurged(key, at, None)

    async def with_delta(self, commit: Commit) -> Commit:
        return commit

    with_before = with_delta

    async def count(self, _: ChangeSetKey) -> int:
        return len(self.commits)

    async def oldest_readable(self, _: ChangeSetKey) -> tuple[int, datetime] | None:
        return self.commits[0].sequence, datetime(2026, 1, 1, tzinfo=UTC)


def rebase(sequence: int, *requests: tuple[Update, ...] | Outcome, before: tuple[Update, ...] | None = ()) -> Commit:
    """Return a commit whose requests are named after their places: `r5.0` is the first request of commit 5."""
    decisions: list[Decision] = []
    delta: list[Update] = []
    for place, request in enumerate(requests):
        refused = isinstance(request, Outcome)
        name = RequestId(f"r{sequence}.{place}")
        outcome = request if isinstance(request, Outcome) else Outcome.SUCCESS
        decisions.append(Decision(10 * sequence + place, name, outcome, 0 if refused else len(cast("Any", request))))
        delta += [] if isinstance(request, Outcome) else request
    return Commit(
        *(f"c{sequence}", sequence - 1, Kind.REBASE, 0, "o", None, 0, tuple(decisions), tuple(delta)),
        sequence=sequence,
        before=before,
    )


def dvu(sequence: int, *computed: Computed) -> Commit:
    return Commit(f"c{sequence}", sequence - 1, Kind.DVU, 0, "o", None, None, delta=computed, sequence=sequence)


async def test_each_request_of_a_commit_is_shown_with_what_stood_before_it() -> None:
    requests = (
        (Set("a", 1), Set("b", 1)),
        Outcome.CONFLICTS,
        (Remove("a"), Set("c", 1), Set("c", 2)),
        (Set("a", 3),),
    )
    known = rebase(1, *requests, before=(Set("a", 0), Set("c", 0)))
    shown = await Log(known).history.show(KEY)
    assert [one.decision.request_id for one in shown.requests] == ["r1.0", "r1.1", "r1.2", "r1.3"]
    assert [one.changes for one in shown.requests] == [
        (Change("a", Set("a", 0), Set("a", 1)), Change("b", None, Set("b", 1))),
        (),
        (Change("a", Set("a", 1), None), Change("c", Set("c", 0), Set("c", 2))),
        (Change("a", None, Set("a", 3)),),
    ]
    shown = await Log(replace(known, before=None)).history.show(KEY)
    assert [[(change.id, change.known) for change in one.changes] for one in shown.requests] == [
        [("a", False), ("b", False)],
        [],
        [("a", True), ("c", False)],
        [("a", True)],
    ]


async def test_the_last_of_several_requests_is_to_blame_and_the_log_has_only_commits_of_the_id() -> None:
    log = Log(
        rebase(1, (Set("a", 1), Derive("ab", "sum", {"x": "a"}))),
        dvu(2, Computed("ab", 1)),
        rebase(3, (Set("a", 2),), (Set("x", 1),), (Set("a", 3),), (Set("y", 1),)),
        rebase(4, (Set("ab", 1),)),
    )
    blamed = await log.blames.blame(KEY, ["a", "ab", "none"])
    found = {id_: (one.sequence, one.request[0].request_id) for id_, one in blamed.items() if one.request}
    assert found == {"a": (3, "r3.2"), "ab": (4, "r4.0")}
    for id_, sequences in (("a", [3, 1]), ("ab", [4, 1]), ("none", [])):
        assert [entry.sequence async for entry in log.history.log(KEY, id_)] == sequences
    assert [entry.sequence async for entry in log.history.log(KEY, at=3)] == [3, 2, 1]


async def test_who_is_to_blame_in_a_commit_that_is_gone_is_not_known() -> None:
    log = Log(rebase(1, (Set("a", 1),)), rebase(2, (Set("b", 1),)), begins=2)
    blamed = await log.blames.blame(KEY, ["a", "b"])
    assert (blamed["a"].sequence, blamed["a"].definition, blamed["a"].entry) == (1, Set("a", 1), None)
    assert blamed["b"].entry is not None


async def test_a_difference_is_found_by_commits_where_they_say_enough_and_else_by_states() -> None:
    first = rebase(1, (Set("a", 1), Set("b", 1)))
    second = rebase(2, (Set("a", 2),), (Set("a", 3), Remove("b")), before=(Set("a", 1), Set("b", 1)))
    third = rebase(3, (Set("a", 1), Set("c", 1)), before=(Set("a", 3),))
    expected = {
        (1, 2): [Change("a", Set("a", 1), Set("a", 3)), Change("b", Set("b", 1), None)],
        (2, 3): [Change("a", Set("a", 3), Set("a", 1)), Change("c", None, Set("c", 1))],
        (1, 3): [Change("b", Set("b", 1), None), Change("c", None, Set("c", 1))],
    }
    whole = Log(first, second, third)
    silent = Log(first, replace(second, before=None), third)
    for (one, two), changes in expected.items():
        for log in (whole, silent):
            assert list((await log.history.diff(KEY, one, KEY, two)).changes) == changes
            back = [Change(change.id, change.after, change.before) for change in changes]
            assert list((await log.history.diff(KEY, two, KEY, one)).changes) == back
    assert whole.states_read == 0
    assert silent.states_read == 8  # two for each of the four entries before commit 2


async def test_derived_values_that_moved_are_told_and_those_that_wait_for_an_update_are_stale() -> None:
    derived = Derive("d", "sum", {"x": "a"})
    log = Log(
        rebase(1, (Set("a", 1), derived)),
        dvu(2, Computed("d", 1)),
        rebase(3, (Set("a", 1.0),), before=(Set("a", 1),)),
        dvu(4, Computed("d", 1.0)),
        rebase(5, (Set("a", "x"),), before=(Set("a", 1.0),)),
        dvu(6, Computed("d", None, Fault("failed", "no", "d"))),
    )

    async def moved(one: int, two: int) -> list[tuple[object, object]]:
        found = await log.history.diff(KEY, one, KEY, two, derived=True)
        assert [change.id for change in found.changes] == ["a"] * (one // 2 != two // 2)
        return [(repr(was.value), repr(is_.value)) for _, was, is_ in found.derived]

    assert await moved(2, 4) == [("1", "1.0")]
    assert await moved(4, 6) == [("1.0", "None")]
    states = await log.history.diff(KEY, 2, KEY, 3, derived=True)
    assert [(str(was.state), str(is_.state)) for _, was, is_ in states.derived] == [("ok", "stale")]


async def test_what_was_purged_has_no_weight() -> None:
    log = Log(*(rebase(number, (Set("a", number),)) for number in range(1, 6)), begins=4)
    assert (await log.history.status(KEY)).bytes == 500
    log.marks = [Mark(1, 2, 0, 200), Mark(3, 4, 0, 400), Mark(4, 5, 0, 500)]
    status = await log.history.status(KEY)
    assert (status.commits, status.bytes, status.oldest) == (2, 100, 4)
    assert (status.checkpoint_blobs, status.checkpoint_bytes) == (2, 11)


async def test_who_made_the_edits_of_the_only_request_is_known_without_reading_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unread(_: Commit) -> Commit:
        raise AssertionError("it may be large")

    log = Log(rebase(1, (Set("a", 1), Set("b", 1))))
    monkeypatch.setattr(log, "with_delta", unread)
    found = await log.blames.blame(KEY, ["a", "b", "none"])
    assert list(found) == ["a", "b"]
    for one in found.values():
        assert one.request is not None
        assert one.request[0].request_id == log.commits[0].requests[0].request_id
