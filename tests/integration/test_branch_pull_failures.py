"""Pulls of a branch that wait for a request which settles it, that fail, or that kill their owners."""

import anyio
import pytest

from rebaser.change_set.attempts import counted_attempts
from rebaser.change_set.branch_puller import LOOK_EVERY, RETRY, SETTLED_IN
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.branches.branch import Apply
from rebaser_core.commit import PULL_ATTEMPT
from rebaser_core.errors import FencedError, TransientError, UnprocessableError
from rebaser_core.streams.subjects import Subjects
from tests.conftest import Events
from tests.support.branch_owners import MAX_DEATHS, OwnersOfBranch
from tests.support.owners import Death, Engine, serving
from tests.support.workspace import edit

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_an_apply_is_left_to_the_request_that_settles_it_for_a_while(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_asks(*_: object) -> None:
        return None

    monkeypatch.setattr("rebaser.change_set.processor.request_settling", nobody_asks)
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix")
        await edit(client, "fix", Set("a", 2), wait="derived")
        await edit(client, "main", action=Apply("fix"))
    owners = OwnersOfBranch(js, subjects)
    await owners.edit_target(Set("b", 1))
    commits, _, puller = await owners.owner()
    assert not await puller.pull()
    owners.now_ms = int(SETTLED_IN * 1000)
    assert await puller.pull()
    assert commits.state.status == "applied"


async def test_an_apply_is_settled_by_a_pull_at_once_if_the_request_that_settles_it_was_refused(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def purged(*_: object) -> None:
        raise UnprocessableError("the commit is gone", code="purged")

    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix")
        await edit(client, "fix", Set("a", 2), wait="derived")
        monkeypatch.setattr("rebaser.change_set.readers.request_reader.read_theirs", purged)
        await edit(client, "main", action=Apply("fix"))
        await edit(client, "fix")  # decided after the request that settles the branch
    owners = OwnersOfBranch(js, subjects)
    await owners.edit_target(Set("b", 1))
    commits, _, puller = await owners.owner()
    assert await puller.pull()
    assert commits.state.status == "applied"


async def test_a_target_that_cannot_be_read_is_looked_at_again_later_and_later(
    owners: OwnersOfBranch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, puller = await owners.owner()
    failure: Exception = TransientError("no")

    async def failing() -> None:
        raise failure

    read = puller._read
    monkeypatch.setattr(puller, "_read", failing)
    for attempt in range(4):
        assert not await puller.pull()
        delay = RETRY * 2**attempt
        assert puller._not_before == owners.now + delay
        owners.now += delay
        with anyio.fail_after(60):
            await puller._wait()  # the pull is due again
    failure = KeyError("a bug")
    assert not await puller.pull()
    assert [one["attempt"] for one in events.named("branch_pull_failed")] == [1, 2, 3, 4, 5]
    assert len(events.named("branch_pull_broken")) == 1
    monkeypatch.setattr(puller, "_read", read)
    assert await puller.pull()
    assert puller._not_before == owners.now + LOOK_EVERY


async def test_a_target_that_was_made_anew_is_not_read_again_until_it_changes(
    owners: OwnersOfBranch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, puller = await owners.owner()
    monkeypatch.setattr("rebaser.change_set.branch_puller.read_theirs", moved)
    assert not await puller.pull()
    assert not await puller.pull()
    assert [one["code"] for one in events.named("branch_pull_refused")] == ["moved"]
    await owners.edit_target(Set("b", 3))
    assert not await puller.pull()
    assert len(events.named("branch_pull_refused")) == 2


async def test_a_pull_that_kills_its_owners_is_announced_counted_and_put_off(
    owners: OwnersOfBranch, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dying() -> None:
        raise Death

    for deaths in range(1, MAX_DEATHS + 1):
        commits, _, puller = await owners.owner(redelivered=True)
        monkeypatch.setattr(puller, "_read", dying)
        with pytest.raises(Death):
            await puller.pull()
        assert commits.state.attempts[PULL_ATTEMPT].deaths == deaths
    owners.now_ms += 1
    commits, _, puller = await owners.owner()
    assert not puller.owed
    assert puller._not_before == pytest.approx(owners.now + counted_attempts.DEFERRAL, abs=counted_attempts.DEFERRAL)
    assert puller._not_before > owners.now
    assert events.named("branch_pull_deferred")[-1]["deaths"] == MAX_DEATHS
    assert await puller.pull()
    assert PULL_ATTEMPT not in commits.state.attempts
    assert events.named("branch_pull_suspected")


async def test_an_owner_that_lost_its_branch_learns_it_from_a_pull(owners: OwnersOfBranch) -> None:
    commits, _, late = await owners.owner()
    _, _, puller = await owners.owner()
    assert await puller.pull()
    assert commits.state.branch is not None
    late._looked = commits.state.branch.base
    late._look = nothing_known  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        await late.pull()


async def nothing_known() -> int:
    return 1


async def moved(*_: object) -> None:
    raise UnprocessableError("it was created again", code="moved")
