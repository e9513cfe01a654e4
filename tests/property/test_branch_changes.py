"""The changes of a branch, read from its commits, equal those in its state, at each position and in steps of any
size."""

import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from rebaser_client.log import branch_changes
from rebaser_client.log.branch_changes import UnknownEdit, read_changes
from rebaser_core.branches.branch import Changed
from rebaser_core.branches.merge import Definition
from rebaser_core.commit import BlobRef, CheckpointRef, Commit, Kind, Origin, Source, Strategy
from rebaser_core.decisions.replay import Replayed, Theirs
from rebaser_core.errors import UnprocessableError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages.tail import encode_changes
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.updates import Remove, Set, Update

pytestmark = pytest.mark.anyio

KEY = ChangeSetKey("ws", "fix")
IDS = [f"v{number}" for number in range(9)]
BIRTH, BASE = 10, 5


class Log:
    """The commits of a branch, as a `CommitReader` returns them, and the changes in its state after each."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.state = ChangeSetState()
        self.commits: list[Commit] = []
        self.blobs: dict[str, bytes] = {}
        self.changes: dict[int, dict[str, Changed]] = {}
        inherited = {id_: Set(id_, 0) for id_ in IDS if rng.random() < 0.6}
        self.state.fold(BASE, Commit("p", 0, Kind.REBASE, 0, "o", None, None, delta=tuple(inherited.values())))
        origin = Origin("main", BASE, "main", BASE)
        self.append(Commit("c", 0, Kind.CREATE, 0, "o", None, None, origin=origin), BIRTH)

    def append(self, commit: Commit, sequence: int) -> None:
        self.commits.append(replace(commit, sequence=sequence))
        follows = BASE if commit.kind is Kind.CREATE else self.state.last
        assert commit.follows == follows
        self.state.fold(sequence, commit)
        self.changes[sequence] = self.now()

    def now(self) -> dict[str, Changed]:
        """Return the changes in the state, without those that equal the base again."""
        branch, here = self.state.branch, self.state.cells.edit_of
        assert branch is not None
        changed = {id_: Changed(base, here(id_), branch.conflicts.get(id_)) for id_, base in branch.changes.items()}
        return {id_: one for id_, one in changed.items() if not one.is_level or one.contested}

    def grow(self) -> None:
        rng, state = self._rng, self.state
        last = state.last
        assert state.branch is not None
        checkpoint, begin = state.checkpoint, 0 if state.checkpoint is not None else BIRTH
        match rng.choices(("edit", "replay", "checkpoint", "other"), (5, 4, 1, 1))[0]:
            case "edit":
                some = [self._update(id_) for id_ in rng.choices(IDS, k=rng.randint(1, 6))]
                told = sorted(state.branch.conflicts.keys() & {update.id for update in some})
                settled = tuple([id_ for id_ in told if rng.random() < 0.5])
                commit = Commit(
                    "c", last, Kind.REBASE, 0, "o", None, None, checkpoint=checkpoint, delta=tuple(some), begin=begin
                )
                commit = replace(commit, before=self._before(some), settled=settled)
            case "replay":
                theirs: dict[str, Definition] = {
                    id_: self._definition(id_) for id_ in rng.sample(IDS, rng.randint(0, 5))
                }
                source = Source("main", state.branch.base + 1)
                found = Replayed(state.branch, Theirs(source, state.branch.base, theirs), rng.choice(list(Strategy)))
                assert all(True for _ in found.compare(state.cells.edit_of, 2))
                commit = Commit(
                    "c", last, Kind.REPLAY, 0, "o", None, None, checkpoint=checkpoint, delta=tuple(found.delta)
                )
                commit = replace(
                    commit, begin=begin, before=self._before(found.delta), replay=found.content(), source=source
                )
            case "checkpoint":
                data = encode_changes(self.now().items())
                address = f"changes-{last}"
                self.blobs[address] = data
                checkpoint, begin = CheckpointRef("checkpoint", last, 1, BlobRef(address, len(data))), 0
                commit = Commit("c", last, Kind.CHECKPOINT, 0, "o", None, None, checkpoint=checkpoint)
            case _:
                commit = Commit("c", last, Kind.DVU, 0, "o", None, last, checkpoint=checkpoint, begin=begin)
        self.append(commit, last + rng.randint(1, 3))

    def _definition(self, id_: str) -> Definition:
        return None if self._rng.random() < 0.2 else Set(id_, self._rng.randint(0, 2))

    def _update(self, id_: str) -> Update:
        return self._definition(id_) or Remove(id_)

    def _before(self, delta: Sequence[Update]) -> tuple[Update, ...]:
        stood = [self.state.cells.edit_of(id_) for id_ in dict.fromkeys([update.id for update in delta])]
        return tuple([one for one in stood if one is not None])

    # -- how a reader of commits sees them -----------------------------------------------------------------------------

    async def commit_at(self, _: ChangeSetKey, at: int) -> Commit | None:
        return max((one for one in self.commits if one.sequence <= at), key=lambda one: one.sequence, default=None)

    async def before(self, _: ChangeSetKey, later: Commit) -> AsyncGenerator[Commit, None]:
        for commit in reversed(self.commits):
            if commit.sequence < later.sequence:
                yield commit

    async def with_delta(self, commit: Commit) -> Commit:
        return commit

    with_before = with_tail = with_delta

    async def blob(self, address: str) -> bytes:
        return self.blobs[address]


@pytest.mark.parametrize("seed", range(100))
async def test_changes_read_from_commits_are_those_of_the_state(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(branch_changes, "STEP", rng.randint(1, 3))
    log = Log(rng)
    for _ in range(14):
        log.grow()
    for commit in log.commits:
        expected = log.changes[commit.sequence]
        try:
            found = await read_changes(log, KEY, commit.sequence)  # type: ignore[arg-type]
        except UnknownEdit:  # in this case, callers load the state
            assert commit.checkpoint is not None, "without a checkpoint, commits suffice"
            continue
        assert {id_: one for id_, one in found.items() if not one.is_level or one.contested} == expected


@pytest.mark.parametrize("of", ["delta_blob", "before_blob"])
async def test_blobs_that_are_too_large_are_not_read(of: str) -> None:
    log = Log(random.Random(1))
    commit = Commit("c", BIRTH, Kind.REBASE, 0, "o", None, None, delta=(Set("a", 1),), before=(), begin=BIRTH)
    log.append(replace(commit, **{of: BlobRef("blob", 1000)}), 11)  # type: ignore[arg-type]
    assert len(await read_changes(log, KEY, 11, max_bytes=1000)) == 1  # type: ignore[arg-type]
    with pytest.raises(UnprocessableError) as refused:
        await read_changes(log, KEY, 11, max_bytes=999)  # type: ignore[arg-type]
    assert refused.value.code == "too_large"
