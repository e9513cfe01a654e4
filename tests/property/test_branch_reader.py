"""The present definitions of a branch's target, read from its commits, equal those in its state, wherever its log
begins."""

import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser_client.log.branches import BranchReader
from rebaser_client.log.changes import LogHistory
from rebaser_core.branches.merge import Definition
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Remove, Set, Update

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "main")
IDS = [f"v{number}" for number in range(6)]


class Log:
    """The commits of a change set, of which the oldest may be purged. A state can be loaded at any position."""

    def __init__(self, rng: random.Random) -> None:
        self.commits: list[Commit] = []
        self.states: dict[int, ChangeSetState] = {}
        self.loaded: list[int | None] = []
        stood: dict[str, Definition] = {}
        sequence = 0
        for _ in range(rng.randint(2, 9)):
            previous, sequence = sequence, sequence + rng.randint(1, 3)
            delta: list[Update] = []
            if rng.random() < 0.8:  # an id may be edited twice in one commit
                delta = [Set(id_, rng.randint(0, 3)) for id_ in rng.choices(IDS, k=rng.randint(1, 5))]
                delta = [Remove(one.id) if rng.random() < 0.3 else one for one in delta]
            before = tuple([one for one in (stood.get(update.id) for update in delta) if one is not None])
            commit = Commit("c", previous, Kind.REBASE, 0, "o", None, None, delta=tuple(delta), before=before)
            self.commits.append(replace(commit, sequence=sequence))
            for update in delta:
                stood[update.id] = None if isinstance(update, Remove) else update
            state = ChangeSetState()
            for one in self.commits:
                state.fold(one.sequence, one)
            self.states[sequence] = state
        self.last = sequence
        self.kept = rng.randint(0, len(self.commits) - 1)  # the number of purged commits

    async def back(self, _: ChangeSetKey, at: int | None = None) -> AsyncIterator[Commit]:
        for commit in reversed(self.commits[self.kept :]):
            if at is None or commit.sequence <= at:
                yield commit

    async def newest_message(self, _: ChangeSetKey, at: int | None) -> Any:
        found = [one.sequence for one in self.commits if at is None or one.sequence <= at]
        return SimpleNamespace(sequence=found[-1], headers={}) if found else None

    async def newest_commit(self, key: ChangeSetKey, at: int | None) -> Any:
        message = await self.newest_message(key, at)
        return message and (message, next(one for one in self.commits if one.sequence == message.sequence))

    async def with_delta(self, commit: Commit) -> Commit:
        return commit

    with_before = with_delta

    async def loader(self) -> "Log":
        return self

    async def load(self, _: ChangeSetKey, at: int | None = None) -> Any:
        self.loaded.append(at)
        return SimpleNamespace(state=self.state(self.last if at is None else at))

    async def load_values(
        self, _: ChangeSetKey, ids: Iterable[str], at: int | None = None, *, stale: bool
    ) -> ChangeSetState:
        assert set(ids) <= set(IDS)
        assert not stale
        self.loaded.append(at)
        return self.state(self.last if at is None else at)

    def state(self, at: int) -> ChangeSetState:
        return self.states.get(max([one for one in self.states if one <= at], default=0)) or ChangeSetState()


@pytest.mark.parametrize("seed", range(120))
async def test_what_the_target_has_is_read_from_commits_or_from_its_state(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(rng)
    reader = BranchReader(cast("Any", None), cast("Any", None), cast("Any", log), cast("Any", log.loader))
    base = rng.choice([one.sequence for one in log.commits])
    ids = dict.fromkeys(rng.sample(IDS, 4))
    at = rng.choice([None, *[one.sequence for one in log.commits[log.kept :] if one.sequence >= base]])
    newest, theirs = await reader._theirs(KEY, base, ids, at)
    position = log.last if at is None else at
    assert newest == position
    now, then = log.state(position).cells.edit_of, log.state(base).cells.edit_of
    assert {id_: theirs.get(id_, then(id_)) for id_ in ids} == {id_: now(id_) for id_ in ids}
    enough = base >= log.commits[log.kept].previous
    assert log.loaded == ([] if enough else [at])


@pytest.mark.parametrize("seed", range(120))
async def test_a_difference_read_from_commits_is_that_of_the_states(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(rng)
    history = LogHistory(cast("Any", log), cast("Any", log.loader))
    first, last = (rng.randint(log.commits[0].sequence, log.last) for _ in range(2))
    diff = await history.diff(KEY, first, KEY, last)
    before, after = log.state(first).cells.edit_of, log.state(last).cells.edit_of
    expected = [(id_, before(id_), after(id_)) for id_ in IDS if before(id_) != after(id_)]
    assert [(one.id, one.before, one.after) for one in diff.changes] == expected
