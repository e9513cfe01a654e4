"""Before the log is purged, the checkpoint that it names is complete; and only commits that no reader needs are
purged."""

from dataclasses import replace
from threading import get_ident
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebaser.change_set.log import checkpointer
from rebaser.change_set.log.commit_log import CommitLog
from rebaser_client.blobs import freshness
from rebaser_core.blobs.address import address_of
from rebaser_core.blobs.garbage import FRESH_FOR
from rebaser_core.branches.branch import Branch
from rebaser_core.checkpoint.writer import CheckpointDraft, WrittenCheckpoint
from rebaser_core.commit import Applied, BlobRef, Commit, Decision, Kind, Outcome
from rebaser_core.errors import TransientError
from rebaser_core.history import Retention
from rebaser_core.ids import RequestId
from rebaser_core.messages.headers.branches import read_blobs
from rebaser_core.messages.headers.sweep import read_sweep_headers
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.state.outcomes import Outcomes
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Derive, Set
from tests.support.kept_log import KeptBlobs, KeptStream, append, kept_blobs, log_of, read_checkpoint

pytestmark = pytest.mark.anyio

RESULT = BlobRef(address_of(b"conflicts"), 9)
FOREVER = Retention(10**15, 1 << 60)


class Place:
    """Everything outside that an owner uses. `purged` has the sequences of its purges."""

    def __init__(self, retention: Retention, *, max_bytes: int = -1, stored_bytes: int = 0) -> None:
        self.purged: list[int] = []
        self.blobs = KeptBlobs()
        self.js = self
        self.subjects = Subjects("")
        self.settings = SimpleNamespace(retention=lambda: retention)
        self.logs = SimpleNamespace(config={"max_bytes": max_bytes}, bytes=stored_bytes)
        self.reader = SimpleNamespace(remember=lambda *_: None)
        self.stream = KeptStream()
        self.state = ChangeSetState()
        self.commits: CommitLog = log_of(self.state, self.blobs, self.stream)

    async def stream_info(self, _: str) -> object:
        return self.logs

    async def purge(self, _: str, __: str, *, sequence: int) -> None:
        assert set(self.loaded().cells) == set(self.state.cells), "who loads now needs what is purged"
        self.purged.append(sequence)

    async def write(self) -> None:
        await checkpointer.write(cast("Any", self), self.commits)

    def loaded(self) -> ChangeSetState:
        assert self.state.checkpoint is not None
        return read_checkpoint(self.blobs.kept, self.state.checkpoint.address)


@pytest.mark.parametrize("lost", ["nothing", "base", "delta"])
async def test_a_part_that_the_store_has_lost_is_stored_again_before_the_log_is_purged(lost: str) -> None:
    place = Place(Retention(0, 0))
    await append(place.commits, *(Set(f"v{number}", number) for number in range(1000)))
    await place.write()
    assert place.purged == []
    for number in range(2):
        await append(place.commits, Set(f"w{number}", number))
        await place.write()
        through = place.state.marks[number].sequence
        assert place.purged[number:] == [through + 1], "up to the checkpoint before the newest"
    chain = place.commits.chain
    assert (len(chain.base), len(chain.deltas)) == (1, 2)
    if lost != "nothing":
        del place.blobs.kept[(chain.base if lost == "base" else chain.deltas)[0].address]
    await append(place.commits, Set("w2", 2))
    await place.write()
    assert place.purged[2:] == [place.state.marks[2].sequence + 1]
    assert len(place.commits.chain.deltas) == (3 if lost == "nothing" else 0)
    assert set(place.loaded().cells) == set(place.state.cells)


@pytest.mark.parametrize(
    ("max_bytes", "stored_bytes", "crowded"), [(1000, 799, False), (1000, 801, True), (-1, 10**9, False)]
)
async def test_a_crowded_stream_keeps_no_history(max_bytes: int, stored_bytes: int, crowded: bool) -> None:
    place = Place(FOREVER, max_bytes=max_bytes, stored_bytes=stored_bytes)
    for number in range(2):
        await append(place.commits, Set(f"v{number}", number))
        await place.write()
    assert place.purged == ([place.state.marks[0].sequence + 1] if crowded else [])


async def test_a_checkpoint_names_all_that_its_reader_needs_and_what_is_owed() -> None:
    """A reader of the checkpoint loads no older commit, and the sweeper reads no older header."""
    place = Place(FOREVER)
    state, commits = place.state, place.commits
    conflicts = (Decision(1, RequestId("r"), Outcome.CONFLICTS, result=RESULT),)
    state.fold(1, Commit("c", 0, Kind.REBASE, 1, "o", Applied("s", 1), None, requests=conflicts))
    state.branch = Branch(1, "main", 1, "main", 1)
    for number in range(2):
        edits = [Set(f"{number}-{n}", n) for n in range((1000, 3)[number])]
        await append(commits, *edits, Derive(f"sum{number}", "sum", {"of": edits[0].id}))
        await checkpointer.store(cast("Any", place.blobs), commits)
        named = set(read_blobs(place.stream.headers))
        assert state.checkpoint is not None
        assert state.checkpoint.changes is not None
        kept = {address: data for address, data in place.blobs.kept.items() if address in named}
        assert set(read_checkpoint(kept, state.checkpoint.address).cells) == set(state.cells)
        assert named >= {state.checkpoint.changes.address, RESULT.address}
        assert (state.debt > 0, read_sweep_headers(place.stream.headers)[1]) == (True, state.debt)
    assert (len(commits.chain.base), len(commits.chain.deltas)) == (1, 1)


async def test_a_checkpoint_whose_parts_took_too_long_to_store_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collection may have deleted its first parts by then."""
    now, put = [0.0], KeptBlobs.put
    monkeypatch.setattr(freshness, "boot_time", lambda: now[0])

    async def slow(self: KeptBlobs, data: bytes) -> str:
        now[0] += FRESH_FOR + 1
        return await put(self, data)

    commits = log_of(ChangeSetState(), blobs := kept_blobs())
    await append(commits, Set("a", 1))
    with monkeypatch.context() as patch:
        patch.setattr(KeptBlobs, "put", slow)
        with pytest.raises(TransientError) as raised:
            await checkpointer.store(blobs, commits)
    assert (raised.value.code, commits.state.checkpoint) == ("blobs_too_old", None)
    await checkpointer.store(blobs, commits)
    assert commits.state.checkpoint is not None


@pytest.mark.parametrize(("requests", "in_thread"), [(10, False), (10_000, True)])
async def test_a_checkpoint_with_many_outcomes_is_encoded_in_a_thread(
    requests: int, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy change set may have a single value and tens of thousands of outcomes. To encode them on the event loop
    would block all change sets."""
    threads, write = list[int](), CheckpointDraft.write

    def noted(draft: CheckpointDraft) -> WrittenCheckpoint:
        threads.append(get_ident())
        return write(draft)

    monkeypatch.setattr(CheckpointDraft, "write", noted)
    place = Place(FOREVER)
    decided = tuple(Decision(number, RequestId(f"r{number}"), Outcome.SUCCESS, 1) for number in range(1, requests + 1))
    edits = (Set("n", 1),)
    place.state.fold(1, Commit("c", 0, Kind.REBASE, 1, "o", Applied("s", requests), None, decided, edits))
    await checkpointer.store(cast("Any", place.blobs), place.commits)
    assert [thread != get_ident() for thread in threads] == [in_thread]
    assert len(place.loaded().outcomes) == requests


def test_the_blobs_of_replies_are_those_of_the_outcomes_that_are_still_recorded() -> None:
    class Unvisited(Outcomes):
        __slots__ = ()

        def __iter__(self) -> Any:
            raise AssertionError("it visits all outcomes")

        items = values = __iter__

    def decided(sequence: int, id_: str, result: str = "", redrive: int = 0) -> Decision:
        blob = BlobRef(result, 1) if result else None
        return Decision(sequence, RequestId(id_), Outcome.CONFLICTS, redrive=redrive, result=blob)

    def results() -> set[str]:
        kept = state.outcomes, state.redriven
        state.outcomes, state.redriven = map(Unvisited, kept)
        found = state.results()
        state.outcomes, state.redriven = kept
        return set(found)

    def settled(state: ChangeSetState, decisions: tuple[Decision, ...], at_ms: int) -> Commit:
        return Commit("c", state.last, Kind.REBASE, at_ms, "o", Applied("s", 1), None, requests=decisions)

    state = ChangeSetState()
    state.fold(1, settled(state, (decided(1, "a", "A"), decided(2, "b"), decided(3, "c", "C")), at_ms=10))
    assert results() == {"A", "C"}
    again = (decided(4, "a"), decided(5, "b", "B"), decided(6, "c", "C2", redrive=1))
    state.fold(2, settled(state, again, at_ms=20))
    assert results() == results() == {"B", "C2"}
    state.fold(3, replace(settled(state, (decided(7, "d", "D"),), at_ms=30), forget_before_ms=25))
    assert results() == {"C2", "D"}  # what was sent again from the dead letters is remembered for longer
    deleted = ChangeSetState()
    deleted._take_queue(state)
    assert set(deleted.results()) == {"C2", "D"}
