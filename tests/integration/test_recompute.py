"""A requested recompute is owed like any update: it outlives its owner, and is done once."""

import anyio
import pytest

from rebaser.sweeper.debts import DebtTracker
from rebaser_client import Derive, RebaserClient, Recompute, RequestRejected, Set, State, Update
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Kind
from rebaser_core.streams.subjects import Subjects
from tests.support.history import check_history, commit_of, commits_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

GRAPH: list[Update] = [Set("a", 1), Derive("b", "sum", {"x": "a"}), Derive("c", "max", {"x": "b"})]


async def test_it_is_still_owed_when_its_owner_has_gone(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine):
        await client.enqueue_updates_with_reply("ws", "cs", GRAPH, wait="derived")
    held = Engine()
    async with serving(js, subjects, held):
        commit = commit_of(await client.recompute("ws", "cs", "sum", wait="applied"))
        await held.asked.wait()
    values = await client.values("ws", "cs")
    assert {id_: value.state for id_, value in values.items()} == {"a": State.OK, "b": State.STALE, "c": State.STALE}
    assert await DebtTracker(js, subjects).read() == {"ws.cs"}

    engine.asked = anyio.Event()
    async with serving(js, subjects, engine):
        await client.wait_covered("ws", "cs", commit)
    assert engine.asked.is_set()
    assert await DebtTracker(js, subjects).read() == set()
    state = await client.state("ws", "cs")
    assert (state.owes, state.stale(), state.covers >= commit) == (False, set(), True)


async def test_asked_twice_under_one_id_it_is_done_once(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    engine = Engine()
    engine.go.set()
    async with serving(js, subjects, engine):
        await client.enqueue_updates_with_reply("ws", "cs", GRAPH, wait="derived")
        first = await client.recompute("ws", "cs", request_id="again")
        second = await client.recompute("ws", "cs", request_id="again")
        assert first == second
        along: list[Update] = [Set("a", 2), Derive("d", "min", {"x": "a"})]
        await client.enqueue_updates_with_reply("ws", "cs", along, wait="derived", recompute=Recompute("min"))
    commits = await commits_of(client, "ws", "cs")
    check_history(commits)
    assert [commit.recompute for commit in commits if commit.recompute] == [(Recompute(),), (Recompute("min"),)]
    assert [len(commit.delta) for commit in commits if commit.kind is Kind.DVU] == [2, 0, 3]


async def test_where_nothing_is_derived_the_answer_says_so(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine()):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        for function in (None, "sum"):
            with pytest.raises(RequestRejected, match="no value of this change set is derived") as caught:
                await client.recompute("ws", "cs", function)
            assert caught.value.code == "nothing_to_recompute"
        state = await client.state("ws", "cs")
    assert not state.owes
    assert [await client.exists("ws", name) for name in ("cs", "other")] == [True, False]
