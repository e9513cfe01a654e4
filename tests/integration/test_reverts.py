"""Edits are reverted from the log, also from blobs, and never over a later edit that the request does not name."""

import random

import anyio.lowlevel
import pytest

from rebaser.change_set.lifecycle import Event
from rebaser.change_set.owner import Owner
from rebaser_client import (
    Conflicts,
    Derive,
    RebaserClient,
    Remove,
    RequestConflicts,
    RequestRejected,
    Set,
    Unset,
    Update,
)
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Authorship, Kind, Outcome, Reverts
from rebaser_core.ids import ChangeSetKey
from rebaser_core.response import Sides
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.history import check_history, commit_of, commits_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")


async def edit(client: RebaserClient, *updates: Update, expect_at: int | None = None) -> int:
    return commit_of(await client.enqueue_updates_with_reply("ws", "cs", updates, expect_at=expect_at))


async def revert(client: RebaserClient, first: int, last: int) -> tuple[int, set[str]]:
    """Return the commit that decided the revert, and the ids that were edited again."""
    try:
        return commit_of(await client.revert("ws", "cs", first, last)), set()
    except RequestConflicts as error:
        status = error.response.status
    assert isinstance(status, Conflicts)
    return status.commit, {one.id for one in status.conflicts}


async def stands(client: RebaserClient) -> dict[str, str]:
    return {update.id: repr(update) for update in (await client.state("ws", "cs")).updates()}


def drawn(rng: random.Random, number: int) -> Update:
    id_ = rng.choice("abcd")
    choice = rng.random()
    if choice < 0.6:
        return Set(id_, rng.choice([number, number % 2, 1, 1.0, True, "x" * 50]))
    if choice < 0.7:
        return Derive(id_, "sum", {"x": rng.choice("ef")})
    return Unset(id_) if choice < 0.8 else Remove(id_)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limits", [Thresholds(), Thresholds(inline_max_bytes=1), Thresholds(inline_max_updates=1)])
async def test_random_edits_and_reverts(
    js: JetStream, subjects: Subjects, client: RebaserClient, limits: Thresholds, seed: int
) -> None:
    """Compared with plain dictionaries, one for each commit."""
    rng = random.Random(seed)
    books: list[tuple[int, dict[str, str]]] = [(0, {})]
    touched: dict[int, set[str]] = {}
    outcomes = set()
    with forced(limits):
        async with serving(js, subjects, Engine()):
            for number in range(30):
                book = dict(books[-1][1])
                if number < 4 or rng.random() < 0.6:
                    updates = [drawn(rng, number) for _ in range(rng.randint(1, 3))]
                    commit = await edit(client, *updates)
                    for update in updates:
                        book[update.id] = repr(update)
                        if isinstance(update, Remove):
                            del book[update.id]
                    touched[commit] = {update.id for update in updates}
                else:
                    first, last = sorted(rng.choices(range(1, len(books)), k=2))
                    if rng.random() < 0.5:
                        last = len(books) - 1
                    ids = set().union(*(touched[books[at][0]] for at in range(first, last + 1)))
                    wanted = {id_: books[first - 1][1].get(id_) for id_ in ids}
                    left = {id_: books[last][1].get(id_) for id_ in ids}
                    bad = {
                        id_ for id_ in ids if wanted[id_] != left[id_] and book.get(id_) not in (left[id_], wanted[id_])
                    }
                    commit, found = await revert(client, books[first][0], books[last][0])
                    assert found == bad
                    taken = {id_ for id_ in ids if wanted[id_] != left[id_] and book.get(id_) != wanted[id_]}
                    touched[commit] = set() if bad else taken
                    for id_ in touched[commit]:
                        book.pop(id_, None)
                        if (definition := wanted[id_]) is not None:
                            book[id_] = definition
                    outcomes.add(bool(bad))
                books.append((commit, book))
                assert await stands(client) == book
    check_history(await commits_of(client, "ws", "cs"))
    assert True in outcomes or False in outcomes


async def test_one_request_of_a_commit_is_reverted(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later requests of the same commit count as later edits, and earlier ones as the state before."""
    asked: dict[str, list[Update]] = {
        "one": [Set("a", 1), Set("b", 1), Remove("z")],
        "two": [Set("a", 2), Set("c", 2), Set("d", 2)],
        "three": [Set("c", 3), Remove("d"), Set("d", 2)],
    }
    for name, updates in asked.items():
        await client.enqueue_updates("ws", "cs", updates, request_id=name, author=name)
    decide, alone = Owner._decide, [True]

    async def decide_together(owner: Owner) -> Event:
        while alone and owner.queue.pending < len(asked):  # type: ignore[union-attr] # the queue is open
            await anyio.lowlevel.checkpoint()
        alone.clear()
        return await decide(owner)

    monkeypatch.setattr(Owner, "_decide", decide_together)
    async with serving(js, subjects, Engine()):
        await edit(client, Set("last", 1))
        together = next(one for one in await commits_of(client, "ws", "cs") if len(one.requests) >= 3)
        assert [one.author for one in together.authors[:3]] == ["one", "two", "three"]
        at = together.sequence
        with pytest.raises(RequestConflicts) as caught:
            await client.revert("ws", "cs", at, request="two")
        (conflict,) = caught.value.conflicts
        assert (conflict.id, conflict.sides) == ("c", Sides(Set("c", 2), Set("c", 3), None))
        before = await stands(client)
        await client.revert("ws", "cs", at, request="three")
        assert (await stands(client)) == before | {"c": repr(Set("c", 2))}
        await client.revert("ws", "cs", at, request="two", message="no")
        assert await stands(client) == {one.id: repr(one) for one in (Set("a", 1), Set("b", 1), Set("last", 1))}
        with pytest.raises(RequestRejected) as rejected:
            await client.revert("ws", "cs", at, request="four")
        assert rejected.value.code == "no_such_request"


async def test_a_revert_is_decided_alone_and_its_commit_says_what_it_reverts(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine()):
        first = await edit(client, Set("a", 1))
    await client.enqueue_updates("ws", "cs", [Set("b", 1)], request_id="in-front")
    request = await client._sender.prepare(  # as `revert` sends it, but without waiting
        *(KEY, client._request_id("back"), (), client._loop.time() + 60),
        from_change_set=None,
        author="ann",
        message="wrong",
        action=Reverts(first, first),
    )
    await client._sender.store(request, client._loop.time() + 60)
    await client.enqueue_updates("ws", "cs", [Set("c", 1)], request_id="behind")
    async with serving(js, subjects, Engine()):
        await edit(client, Set("d", 1))
        again = await client.revert("ws", "cs", first, author="ann", message="wrong", request_id="back")
    commits = await commits_of(client, "ws", "cs")
    decided = [[one.request_id for one in commit.requests] for commit in commits if commit.kind is Kind.REBASE]
    assert decided[1:3] == [["in-front"], ["back"]]
    assert decided[3][0] == "behind"
    revert = next(commit for commit in commits if commit.reverts is not None)
    assert (revert.reverts, revert.delta) == (Reverts(first, first), (Remove("a"),))
    assert (revert.before, revert.authors) == ((Set("a", 1),), (Authorship("ann", "wrong"),))
    assert commit_of(again) == revert.sequence


async def test_what_was_edited_since_is_refused_and_what_is_older_is_not(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine()):
        first = await edit(client, Set("a", 1), Set("b", 1))
        second = await edit(client, Set("a", 2))
        with pytest.raises(RequestRejected) as caught:
            await edit(client, Set("a", 3), Set("b", 3), expect_at=first)
        assert caught.value.code == "moved"
        assert "a" in caught.value.response.status.message  # type: ignore[union-attr]
        await edit(client, Set("b", 3), expect_at=first)
        await edit(client, Set("a", 3), expect_at=second)
    assert await stands(client) == {"a": repr(Set("a", 3)), "b": repr(Set("b", 3))}


async def test_what_the_log_does_not_say_is_not_reverted(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async def refused(first: int, last: int | None = None) -> str:
        with pytest.raises(RequestRejected) as caught:
            await client.revert("ws", "cs", first, last)
        return caught.value.code

    async with serving(js, subjects, Engine(), history_for=0):
        old = await edit(client, Set("a", 1))
        assert await refused(old) == "unsupported"
    async with serving(js, subjects, Engine()):
        new = await edit(client, Set("a", 2))
        assert await refused(old) == await refused(old, new) == "purged"
        assert await refused(new, 10**9) == "no_such_position"
        await client.revert("ws", "cs", new)
        assert await stands(client) == {"a": repr(Set("a", 1))}
        refusals = [one for commit in await commits_of(client, "ws", "cs") for one in commit.requests if one.code]
        assert [one.outcome for one in refusals] == [Outcome.ERROR] * 4
        newest = await edit(client, Set("a", 3))
        await js.purge(subjects.commits_stream, subjects.commits(KEY), sequence=newest)
        assert await refused(new) == await refused(new, newest) == "purged"
        await client.revert("ws", "cs", newest)
    assert [letter async for letter in client.dead_letters.find()] == []


async def test_old_commits_are_reverted_as_far_as_limits_allow(
    js: JetStream, subjects: Subjects, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser.change_set.readers.revert_reader.MAX_BYTES", 1_500)
    async with serving(js, subjects, Engine()):
        first = await edit(client, Set("a", "x" * 1_000))
        last = await edit(client, Set("b", "x" * 1_000))
        with pytest.raises(RequestRejected) as caught:
            await client.revert("ws", "cs", first, last)
        assert caught.value.code == "too_large"
        await client.revert("ws", "cs", last)
        assert set(await stands(client)) == {"a"}


async def test_commits_of_a_target_that_was_created_anew_are_not_those_of_its_predecessor(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, Set("a", 1))
        await client.create_branch("ws", "main", "cs")
        old = commit_of(await client.enqueue_updates_with_reply("ws", "main", [Set("a", 2)]))
        await client.delete_change_set("ws", "main")
        await client.create_branch("ws", "main", "cs")
        born = (await client.state("ws", "main")).last
        new = commit_of(await client.enqueue_updates_with_reply("ws", "main", [Set("a", 2)]))
        await client.create_branch("ws", "fix", "main")
        for first, last in ((old, old), (old, new), (born, new)):
            with pytest.raises(RequestRejected, match=f"commit {born} created main") as caught:
                await client.revert("ws", "fix", first, last, of="main")
            assert caught.value.code == "before_creation"
        await client.revert("ws", "fix", new, of="main")
        assert (await client.values("ws", "fix"))["a"].value == 1
