"""Requests with many ids share the event loop: they are checked and folded in steps, and no view shows half a
commit."""

from collections.abc import AsyncIterator, Iterable, Sequence

import anyio
import pytest

from rebaser.change_set.loading import open_log
from rebaser.change_set.log import commit_drafts
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.settings import Settings
from rebaser_client import RebaserClient, Remove, RequestRejected, Set, Update, cooperative
from rebaser_client.jetstream import JetStream
from rebaser_client.log import reader
from rebaser_core.commit import Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.contexts import context_of
from tests.support.history import commit_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")
MANY, STEP = 300, 20
STEPS = Thresholds(fold_step=STEP, inline_max_updates=MANY)


@pytest.fixture
async def commits(js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CommitLog]:
    monkeypatch.setattr(cooperative, "TIME_SLICE", 0.0)  # `cooperate` always yields
    with forced(STEPS):
        yield await open_log(context_of(js, subjects, Settings(server_id="test")), KEY)


def sets(number: int) -> tuple[Update, ...]:
    return tuple(Set(f"id{at}", number) for at in range(MANY))


async def append(commits: CommitLog, number: int) -> int:
    async with commits.append_lock():
        return await commits.append(commits.draft(Kind.REBASE, delta=sets(number)))


async def test_a_view_is_of_a_whole_commit(commits: CommitLog) -> None:
    await append(commits, 0)
    seen: list[set[str]] = []
    done = anyio.Event()

    async def look() -> None:
        while not done.is_set():
            async with commits.view():
                seen.append({repr(value.value) for value in commits.state.values().values()})
                await anyio.lowlevel.checkpoint()

    turns = 0

    async def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        group.start_soon(count)
        for _ in range(10):
            await append(commits, commits.state.last)
        done.set()
    assert seen
    assert all(len(one) == 1 for one in seen), "a view saw half of a commit"
    assert turns > 10 * MANY // STEP


async def test_a_commit_is_folded_whole_even_if_its_owner_is_stopped_meanwhile(
    commits: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await append(commits, 1)
    weight, steps = commits.tail_weight, 0

    async def stopped() -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            scope.cancel()
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(cooperative, "cooperate", stopped)
    with anyio.CancelScope() as scope:
        await append(commits, 2)
    assert scope.cancelled_caught
    assert steps == 3
    assert commits.state.last > first
    assert {one.value for one in commits.state.values().values()} == {2}
    assert commits.tail_weight > weight
    async with commits.view() as view:
        assert view.sequence == commits.state.last


async def test_many_ids_are_checked_and_folded_a_few_at_a_time(
    nats_url: str, js: JetStream, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    defined_by, wakes = ChangeSetState.defined_by, ChangeSetState.wakes
    at_once: list[int] = [0]
    woken: list[int] = []

    async def counted() -> float:
        at_once.append(0)
        return await cooperative.cooperate()

    def one(state: ChangeSetState, id_: str) -> int:
        at_once[-1] += 1
        return defined_by(state, id_)

    def some(state: ChangeSetState, updates: Iterable[Update]) -> bool:
        assert isinstance(updates, Sequence)
        woken.append(len(updates))
        return wakes(state, updates)

    engine = Engine()
    engine.go.set()
    monkeypatch.setattr(commit_drafts, "cooperate", counted)
    monkeypatch.setattr(ChangeSetState, "defined_by", one)
    monkeypatch.setattr(ChangeSetState, "wakes", some)
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        with forced(STEPS):
            async with serving(js, subjects, engine):
                made = commit_of(await client.enqueue_updates_with_reply("ws", "cs", sets(1)))
                await client.enqueue_updates_with_reply("ws", "cs", [Set("id7", 2)])
                with pytest.raises(RequestRejected) as caught:
                    await client.enqueue_updates_with_reply("ws", "cs", sets(3), expect_at=made)
                assert caught.value.code == "moved"
                assert "id7" in str(caught.value)
                removed: list[Update] = [*(Remove(f"id{at}") for at in range(MANY) if at != 7), Set("new", 1)]
                await client.enqueue_updates_with_reply("ws", "cs", removed, expect_at=made + 1)
        assert {id_: value.value for id_, value in (await client.values("ws", "cs")).items()} == {"id7": 2, "new": 1}
    assert sum(at_once) >= 2 * MANY - 1
    assert 0 < max(at_once) <= STEP
    assert sum(woken) >= 2 * MANY
    assert max(woken) <= STEP


async def test_a_load_folds_a_large_commit_in_steps(
    js: JetStream, subjects: Subjects, commits: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        await append(commits, number)
    steps = [0]

    async def counted() -> float:
        steps[0] += 1
        return await cooperative.cooperate()

    monkeypatch.setattr(reader, "cooperate", counted)
    loaded = await context_of(js, subjects, Settings(server_id="other")).reader.load(KEY)
    assert {one.value for one in loaded.state.values().values()} == {1}
    assert steps[0] >= 2 * (MANY // STEP - 1)
