"""Who is to blame for a definition that applies and rebases copied from one change set to the next, and what is said if
the history of one of them cannot be read."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from rebaser_client.log import blame
from rebaser_client.log.blame import Blame, BlameReader
from rebaser_client.log.positions import PositionPurged
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.commit import Authorship, Commit, Decision, Kind, Outcome, Replay, Source
from rebaser_core.errors import RebaserError, TransientError, UnsupportedVersion
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Derive, Match, Remove, Set, Update

pytestmark = pytest.mark.anyio


def key(name: str) -> ChangeSetKey:
    return ChangeSetKey("ws", name)


class Logs:
    """Logs in memory, by name of their change set, instead of a `CommitReader` and a `StateLoader`."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Commit]] = {}
        self.last = 0
        self.purged_below: dict[str, int] = {}
        self.failing: dict[str, RebaserError] = {}
        self.loads = 0
        self.reader = BlameReader(cast("Any", self), self._states)

    def commit(self, name: str, *updates: Update, by: str = "", source: Source | None = None, **fields: Any) -> int:
        """Append a commit with one request of `by`, or without requests if `by` is empty. Return its sequence."""
        self.last += 1
        log = self.logs.setdefault(name, [])
        decided = (Decision(self.last, RequestId(f"r{self.last}"), Outcome.SUCCESS, len(updates)),) if by else ()
        previous = log[-1].sequence if log else 0
        about = {"authors": (Authorship(by),) if by else (), "before": (), "source": source} | fields
        log.append(
            Commit(
                *(f"c{self.last}", previous, about.pop("kind", Kind.REBASE), 0, "o", None, 0, decided, updates),
                sequence=self.last,
                **about,
            )
        )
        return self.last

    def copy(self, name: str, of: str, *updates: Update, by: str = "") -> int:
        """Append a commit that copies `updates` from the newest commit of `of`: an apply, or, if `by` is empty, an
        automatic rebase."""
        source = Source(of, self.logs[of][-1].sequence)
        if by:
            return self.commit(name, *updates, by=by, source=source)
        return self.commit(name, *updates, source=source, kind=Kind.REPLAY, replay=Replay())

    async def _states(self) -> Any:
        return self

    def _read(self, of: ChangeSetKey, at: int | None) -> list[Commit]:
        if of.change_set in self.failing:
            raise self.failing[of.change_set]
        found = [one for one in self.logs[of.change_set] if at is None or one.sequence <= at]
        if not found or found[-1].sequence < self.purged_below.get(of.change_set, 0):
            raise PositionPurged(of, at or 0, None)
        return found

    async def load(self, of: ChangeSetKey, at: int | None = None) -> Any:
        self.loads += 1
        state = ChangeSetState()
        state.branch = None
        for one in self._read(of, at):
            state.fold(one.sequence, one)
        return type("Loaded", (), {"state": state})

    async def load_values(
        self, of: ChangeSetKey, ids: Iterable[str], at: int | None = None, *, stale: bool
    ) -> ChangeSetState:
        assert not stale
        assert list(ids)
        state: ChangeSetState = (await self.load(of, at)).state
        return state

    async def key_of(self, of: ChangeSetKey, sequence: int) -> ChangeSetKey:
        return next(key(name) for name, log in self.logs.items() if any(one.sequence == sequence for one in log))

    async def commit_at(self, of: ChangeSetKey, at: int | None) -> Commit | None:
        return self._read(of, at)[-1]

    async def purged(self, of: ChangeSetKey, at: int) -> PositionPurged:
        return PositionPurged(of, at, None)

    async def with_delta(self, commit: Commit) -> Commit:
        return commit

    with_before = with_delta


def told(found: Blame) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the author of the edit, its position, and the commits that copied it with their authors."""
    copies = [
        (f"{one.change_set}@{one.entry.sequence}", one.request[1].author if one.request else "") for one in found.copies
    ]
    return found.request[1].author if found.request else "", f"{found.change_set}@{found.sequence}", copies


async def test_a_definition_is_followed_through_applies_and_rebases_to_its_author() -> None:
    logs = Logs()
    logs.commit("a", Set("x", 1), by="ann")
    logs.commit("a", Set("y", 1), by="ben")
    logs.copy("b", "a", Set("x", 1), Set("y", 1), by="cid")
    logs.commit("b", Set("y", 2), by="dan")
    logs.copy("c", "b", Set("x", 1), Set("y", 2))
    logs.copy("d", "c", Set("x", 1), Set("y", 2), by="eve")
    logs.commit("d", Set("z", 1), by="fay")
    found = await logs.reader.blame(key("d"), ["x", "y", "z", "none"])
    assert {id_: told(one) for id_, one in found.items()} == {
        "x": ("ann", "a@1", [("d@6", "eve"), ("c@5", ""), ("b@3", "cid")]),
        "y": ("dan", "b@4", [("d@6", "eve"), ("c@5", "")]),
        "z": ("fay", "d@7", []),
    }
    assert not any(one.lost for one in found.values())
    assert logs.loads == 4  # one state for each change set, whatever the number of values
    assert told((await logs.reader.blame(key("d"), ["x"], 6))["x"]) == told(found["x"])


@pytest.mark.parametrize(
    "error",
    [
        NotAllowed("subscribe", "commits"),
        UnsupportedVersion("a newer server wrote it"),
        TransientError("gone", code="blob_missing"),
        PositionPurged(key("a"), 1, None),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_if_a_history_cannot_be_read_the_commit_that_copied_from_it_is_told_with_the_reason(
    error: RebaserError,
) -> None:
    logs = Logs()
    logs.commit("a", Set("x", 1), by="ann")
    logs.copy("b", "a", Set("x", 1), by="ben")
    logs.copy("c", "b", Set("x", 1), by="cid")
    logs.failing["a"] = error
    found = (await logs.reader.blame(key("c"), ["x"]))["x"]
    assert told(found) == ("ben", "b@2", [("c@3", "cid")])
    assert found.lost == error.message


async def test_an_error_that_may_pass_is_raised() -> None:
    logs = Logs()
    logs.commit("a", Set("x", 1), by="ann")
    logs.copy("b", "a", Set("x", 1), by="ben")
    logs.failing["a"] = TransientError("NATS does not answer")
    with pytest.raises(TransientError, match="does not answer"):
        await logs.reader.blame(key("b"), ["x"])


async def test_a_position_without_the_definition_that_was_copied_is_not_believed() -> None:
    for other in (Set("x", 2), Remove("x")):
        logs = Logs()
        logs.commit("a", Set("x", 2), other, by="ann")
        logs.copy("b", "a", Set("x", 1), by="ben")
        found = (await logs.reader.blame(key("b"), ["x"]))["x"]
        assert told(found) == ("ben", "b@2", [])
        assert found.lost == "ws/a@1 does not have the definition that was copied from there"


async def test_a_commit_of_another_log_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs()
    logs.commit("a", Set("x", 1), by="ann")
    logs.copy("b", "a", Set("x", 1), by="ben")

    async def other(_: ChangeSetKey, __: int) -> ChangeSetKey:
        return key("other")

    monkeypatch.setattr(logs, "key_of", other)
    found = (await logs.reader.blame(key("b"), ["x"]))["x"]
    assert (told(found), found.lost) == (("ben", "b@2", []), "commit 1 is not in the log of ws/a")


async def test_an_edit_whose_commit_was_purged_keeps_its_position_and_the_commits_that_copied_it() -> None:
    logs = Logs()
    logs.commit("a", Set("x", 1), by="ann")
    logs.commit("a", Set("y", 1), by="ann")
    logs.copy("b", "a", Set("x", 1), Set("y", 1), by="ben")
    logs.purged_below["a"] = 2
    found = await logs.reader.blame(key("b"), ["x", "y"])
    assert told(found["x"]) == ("", "a@1", [("b@3", "ben")])
    assert "ws/a@1 is no longer readable" in found["x"].lost
    assert told(found["y"]) == ("ann", "a@2", [("b@3", "ben")])


async def test_a_commit_that_was_purged_is_looked_for_once_however_many_values_it_defined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = Logs()
    ids = [f"x{number}" for number in range(20)]
    logs.commit("a", *(Set(id_, 1) for id_ in ids), by="ann")
    logs.commit("a", Set("y", 1), by="ann")
    asked: list[int | None] = []
    commit_at = logs.commit_at

    async def counted(of: ChangeSetKey, at: int | None) -> Commit | None:
        asked.append(at)
        if at == 1:
            raise PositionPurged(of, 1, None)
        return await commit_at(of, at)

    monkeypatch.setattr(logs, "commit_at", counted)
    found = await logs.reader.blame(key("a"), [*ids, "y"])
    assert {found[id_].lost for id_ in ids} == {PositionPurged(key("a"), 1, None).message}
    assert {(found[id_].sequence, found[id_].change_set) for id_ in ids} == {(1, "a")}
    assert (told(found["y"]), asked) == (("ann", "a@2", []), [1, 2])


async def test_the_number_of_copies_that_are_followed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "MAX_COPIES", 2)
    logs = Logs()
    logs.commit("a", Set("x", 1), by="ann")
    for of, name in ("ab", "bc", "cd"):
        logs.copy(name, of, Set("x", 1), by=name)
    logs.commit("d", Set("y", 1), by="dan")
    found = await logs.reader.blame(key("d"), ["x", "y"])
    assert told(found["x"]) == ("b", "b@2", [("d@4", "d"), ("c@3", "c")])
    assert found["x"].lost == "more than 2 applies and rebases have copied the definition"
    assert (told(found["y"]), found["y"].lost) == (("dan", "d@5", []), "")


async def test_the_newest_edit_is_found_among_all_that_a_value_depends_on() -> None:
    logs = Logs()
    logs.commit("a", Set("fee/1", 1), Set("rate", 2), Derive("fees", "sum", {"of": Match("fee/*")}), by="ann")
    logs.commit(
        "a", Derive("total", "sum", {"of": ["fees", "rate", "gone"]}), Derive("loop", "sum", {"of": "loop"}), by="ben"
    )
    logs.commit("a", Set("other", 1), by="cid")
    assert {id_: one.id for id_, one in (await logs.reader.blame(key("a"), ["total", "fees"], deep=True)).items()} == {
        "total": "total",
        "fees": "fees",
    }
    logs.commit("b", Set("fee/2", 3), by="dan")
    logs.copy("a", "b", Set("fee/2", 3), by="eve")
    found = await logs.reader.blame(key("a"), ["total", "fees", "rate", "loop", "none"], deep=True)
    assert {id_: one.id for id_, one in found.items()} == {
        "total": "fee/2",
        "fees": "fee/2",
        "rate": "rate",
        "loop": "loop",
    }
    assert told(found["total"]) == ("dan", "b@4", [("a@5", "eve")])
