"""Owners bring branches that follow their targets up to date, after waiting requests and without any damage."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest

from rebaser.change_set.attempts import counted_attempts
from rebaser.change_set.attempts.poison import PoisonDetector
from rebaser.change_set.branch_puller import LOOK_EVERY, RETRY, SETTLED_IN, BranchPuller
from rebaser.change_set.log.commit_log import CommitLog, open_log
from rebaser.change_set.processor import Processor
from rebaser.change_set.recheck import recheck
from rebaser.runtime.context import Context
from rebaser.settings import Settings
from rebaser_client import Derive, RebaserClient, Set, Update
from rebaser_client.jetstream import JetStream, Message, OrderedConsumer
from rebaser_client.log.branches import BranchConflict
from rebaser_client.requests.task_publisher import publish_task
from rebaser_core.branches.branch import Apply, Rebase
from rebaser_core.commit import PULL_ATTEMPT, Applied, BranchStatus, Commit, Kind, Marking, Strategy
from rebaser_core.errors import FencedError, TransientError, UnprocessableError
from rebaser_core.ids import ChangeSetKey, RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.history import check_history, commit_of, commits_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "fix")
MAX_DEATHS = 2
WAYS = {"log": Thresholds(), "state": Thresholds(replay_max_bytes=0, fold_step=1)}


@pytest.fixture
async def client(nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as connected:
        yield connected


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.go.set()
    return engine


async def edit(client: RebaserClient, name: str, *updates: Update, **options: Any) -> int:
    return commit_of(await client.enqueue_updates_with_reply("ws", name, updates, **options))


async def stands(client: RebaserClient, name: str) -> dict[str, object]:
    return {id_: value.value for id_, value in (await client.values("ws", name)).items()}


async def level(js: JetStream, subjects: Subjects, client: RebaserClient, name: str = "fix") -> Commit:
    """Wait until the branch is up to date, and return the newest commit that did this. Until then, make servers load
    it."""
    with anyio.fail_after(60):
        while True:
            await publish_task(js, subjects, ChangeSetKey("ws", name))
            info = await client.branch("ws", name)
            replays = [one for one in await commits_of(client, "ws", name) if one.kind is Kind.REPLAY]
            if info is not None and not info.behind and replays:
                return replays[-1]
            await anyio.sleep(0.02)


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_a_branch_that_wakes_is_brought_up_to_date_in_one_commit_and_computed(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    with forced(limits):
        async with serving(js, subjects, engine, quiescent_period=0.1):
            total = Derive("sum", "sum", {"values": ("a", "b")})
            await edit(client, "main", Set("a", 1), Set("b", 2), Set("c", 3), total, wait="derived")
            made = await client.create_branch("ws", "fix")
            assert made.follow == "auto"
            await edit(client, "fix", Set("a", 10), wait="derived")
            await edit(client, "main", Set("b", 20))
            last = await edit(client, "main", Set("b", 21), Set("a", 11))
            pulled = await level(js, subjects, client)
            assert pulled.requests == ()
            assert pulled.source is not None
            assert pulled.source.sequence >= last
            found = await client.conflicts("ws", "fix")
            assert found.conflicts == (BranchConflict("a", Set("a", 1), Set("a", 10), Set("a", 11)),)
            await edit(client, "fix", wait="derived")
            assert await stands(client, "fix") == {"a": 10, "b": 21, "c": 3, "sum": 31}
            commits = await commits_of(client, "ws", "fix")
            check_history(commits)
            assert len([one for one in commits if one.kind is Kind.REPLAY]) == 1


async def test_a_branch_that_does_not_follow_is_left_alone(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine, quiescent_period=0.1):
        await edit(client, "main", Set("a", 1))
        for name, follow in (("fix", "manual"), ("other", "auto")):
            await client.create_branch("ws", name, follow=follow)  # type: ignore[arg-type] # it is one of the two
        await client.protect("ws", "other")
        await edit(client, "main", Set("a", 2))
        for name in ("fix", "other"):
            await edit(client, name)
        await client.unprotect("ws", "other")
        await level(js, subjects, client, "other")
        assert [one.kind for one in await commits_of(client, "ws", "fix")] == [Kind.CREATE, Kind.REBASE]
        info = await client.branch("ws", "fix")
        assert info is not None
        assert (info.follow, info.behind) == ("manual", True)


# -- one owner ---------------------------------------------------------------------------------------------------------


class Place:
    """Owners of one branch, step by step. `now` is their clock in seconds; `now_ms` is added to the time of day."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.now, self.now_ms = 1000.0, 0
        context = context_of(js, subjects, Settings(server_id="test", max_deaths=MAX_DEATHS), Engine())
        time_of_day = context.now_ms
        self.context: Context = replace(context, now=lambda: self.now, now_ms=lambda: time_of_day() + self.now_ms)

    async def edit_target(self, *updates: Update) -> int:
        commits = await open_log(self.context, ChangeSetKey("ws", "main"))
        async with commits.append_lock():
            before = await commits.before(updates)
            return await commits.append(commits.draft(Kind.REBASE, delta=updates, before=before))

    async def owner(
        self, *, redelivered: bool = False, hung: bool = False, suspects: bool = False
    ) -> tuple[CommitLog, Processor, BranchPuller]:
        """Return an owner. With `suspects`, each queued request may have killed an earlier owner."""
        commits = await open_log(self.context, KEY)
        applied = commits.state.applied
        assert applied is not None
        until = 2**63 if suspects else 0
        detector = PoisonDetector(self.context, commits, redelivered=suspects, after=0, until=until, hung=lambda: False)
        processor = Processor(self.context, commits, Applied(applied.stream, applied.sequence), detector)
        return (
            commits,
            processor,
            BranchPuller(self.context, commits, processor, redelivered=redelivered, hung=lambda: False),
        )

    async def queued(self) -> list[Message]:
        """Return the requests in the queue of the branch."""
        subjects = self.context.subjects
        async with OrderedConsumer(self.context.js, subjects.requests_stream, subjects.requests(KEY)) as consumer:
            await consumer.wait()
            return list(consumer.take(100, 10**9))


@pytest.fixture
async def place(js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine) -> Place:
    """A branch that edited `a`, and whose target then edited `a` and `b`."""
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1), Set("b", 1))
        await client.create_branch("ws", "fix")
        await edit(client, "fix", Set("a", 10))
    place = Place(js, subjects)
    await place.edit_target(Set("a", 2), Set("b", 2))
    return place


async def test_a_pull_comes_behind_what_is_queued_and_who_raced_it_is_told(place: Place, client: RebaserClient) -> None:
    commits, processor, puller = await place.owner()
    seen = commits.state.last
    await client.enqueue_updates("ws", "fix", [Set("a", 11)], expect_at=seen)
    async with anyio.create_task_group() as group:
        group.start_soon(puller.pull)
        await anyio.wait_all_tasks_blocked()
        assert commits.state.last == seen
        await processor.process(await place.queued())
        puller.wake()
    kinds = [commit.kind for commit in (await commits_of(client, "ws", "fix"))[-2:]]
    assert kinds == [Kind.REBASE, Kind.REPLAY]
    assert await stands(client, "fix") == {"a": 11, "b": 2}
    assert [one.ours for one in (await client.conflicts("ws", "fix")).conflicts] == [Set("a", 11)]
    await client.enqueue_updates("ws", "fix", [Set("b", 3)], request_id="late", expect_at=seen)
    await client.enqueue_updates("ws", "fix", [Set("a", 12)], request_id="later", expect_at=seen)
    await processor.process(await place.queued())
    refused = [one for commit in await commits_of(client, "ws", "fix") for one in commit.requests][-2:]
    assert [(one.request_id, one.code) for one in refused] == [("late", "moved"), ("later", "moved")]


async def test_a_branch_that_was_closed_under_a_look_and_is_open_again_is_looked_at_before_its_owner_ends(
    place: Place, client: RebaserClient
) -> None:
    commits, processor, puller = await place.owner()
    closed, opened = Marking(status=BranchStatus.ABANDONED), Marking(status=BranchStatus.OPEN)
    message = await asked(place, client, closed)
    async with anyio.create_task_group() as group:
        group.start_soon(puller.pull)
        await anyio.wait_all_tasks_blocked()  # until the pull waits for the request
        await processor.process([message])
        puller.wake()
    owed, left = [puller.owed], [await recheck(place.context, commits, processor, puller)]
    await processor.process([await asked(place, client, opened)])
    puller.wake()
    owed.append(puller.owed)
    # So an owner that releases the branch has its task published again.
    left.append(await recheck(place.context, commits, processor, puller))
    with anyio.fail_after(60):
        await puller._wait()  # returns at once, because the clock stands still
    assert await puller.pull()
    assert [*owed, puller.owed] == [*left, False] == [False, True, False]
    assert (await stands(client, "fix"))["b"] == 2


@pytest.mark.parametrize("suspects", [False, True])
async def test_a_rebase_that_was_read_before_a_pull_is_read_again(
    place: Place, client: RebaserClient, suspects: bool
) -> None:
    commits, processor, puller = await place.owner(suspects=suspects)
    action = Rebase(strategy=Strategy.THEIRS)
    message = await asked(place, client, action)
    read = processor._reader.with_sources

    async def and_pull(*given: Any) -> Any:
        found = await read(*given)
        processor._reader.with_sources = read  # type: ignore[method-assign]
        processor.rebasing = False  # as if the request had been decided just before
        processor.answered = message.stream_sequence
        assert await puller.pull()
        return found

    processor._reader.with_sources = and_pull  # type: ignore[method-assign, assignment]
    done = await processor.process([message])
    assert list(done.rest) == [message]
    assert not (await processor.process([message])).rest
    kinds = [one.kind for one in await commits_of(client, "ws", "fix")]
    assert [kind for kind in kinds if kind is not Kind.ATTEMPT][-2:] == [Kind.REPLAY, Kind.REPLAY]
    assert await stands(client, "fix") == {"a": 2, "b": 2}
    assert commits.state.branch is not None
    assert not commits.state.branch.conflicts


async def test_a_pull_that_was_read_before_a_rebase_begins_anew(
    place: Place, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, processor, puller = await place.owner()
    read = puller._read

    async def and_rebase() -> Any:
        found = await read()
        monkeypatch.setattr(puller, "_read", read)
        await processor.process([await asked(place, client, Rebase(strategy=Strategy.OURS))])
        await place.edit_target(Set("b", 3))
        return found

    monkeypatch.setattr(puller, "_read", and_rebase)
    assert await puller.pull()
    assert [bool(one.requests) for one in await commits_of(client, "ws", "fix")][-2:] == [True, False]
    assert await stands(client, "fix") == {"a": 10, "b": 3}
    assert commits.state.branch is not None
    assert not commits.state.branch.conflicts


async def test_a_pull_whose_target_was_rebased_onto_before_it_is_read_writes_nothing(
    place: Place, client: RebaserClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, processor, puller = await place.owner()
    read = puller._read

    async def rebase_and_read() -> Any:
        monkeypatch.setattr(puller, "_read", read)
        await processor.process([await asked(place, client, Rebase(strategy=Strategy.OURS))])
        await place.edit_target()  # a commit without edits
        return await read()

    monkeypatch.setattr(puller, "_read", rebase_and_read)
    assert await puller.pull()  # the log of the target grew by the request
    assert (await commits_of(client, "ws", "fix"))[-1].requests


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
    place = Place(js, subjects)
    await place.edit_target(Set("b", 1))
    commits, _, puller = await place.owner()
    assert not await puller.pull()
    place.now_ms = int(SETTLED_IN * 1000)
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
    place = Place(js, subjects)
    await place.edit_target(Set("b", 1))
    commits, _, puller = await place.owner()
    assert await puller.pull()
    assert commits.state.status == "applied"


async def test_a_target_that_cannot_be_read_is_looked_at_again_later_and_later(
    place: Place, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, puller = await place.owner()
    failure: Exception = TransientError("no")

    async def failing() -> None:
        raise failure

    read = puller._read
    monkeypatch.setattr(puller, "_read", failing)
    for attempt in range(4):
        assert not await puller.pull()
        delay = RETRY * 2**attempt
        assert puller._not_before == place.now + delay
        place.now += delay
        with anyio.fail_after(60):
            await puller._wait()  # the pull is due again
    failure = KeyError("a bug")
    assert not await puller.pull()
    assert [one["attempt"] for one in events.named("branch_pull_failed")] == [1, 2, 3, 4, 5]
    assert len(events.named("branch_pull_broken")) == 1
    monkeypatch.setattr(puller, "_read", read)
    assert await puller.pull()
    assert puller._not_before == place.now + LOOK_EVERY


async def test_a_target_that_was_made_anew_is_not_read_again_until_it_changes(
    place: Place, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, puller = await place.owner()
    monkeypatch.setattr("rebaser.change_set.branch_puller.read_theirs", moved)
    assert not await puller.pull()
    assert not await puller.pull()
    assert [one["code"] for one in events.named("branch_pull_refused")] == ["moved"]
    await place.edit_target(Set("b", 3))
    assert not await puller.pull()
    assert len(events.named("branch_pull_refused")) == 2


async def test_a_pull_that_kills_its_owners_is_announced_counted_and_put_off(
    place: Place, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dying() -> None:
        raise Death

    for deaths in range(1, MAX_DEATHS + 1):
        commits, _, puller = await place.owner(redelivered=True)
        monkeypatch.setattr(puller, "_read", dying)
        with pytest.raises(Death):
            await puller.pull()
        assert commits.state.attempts[PULL_ATTEMPT].deaths == deaths
    place.now_ms += 1
    commits, _, puller = await place.owner()
    assert not puller.owed
    assert puller._not_before == pytest.approx(place.now + counted_attempts.DEFERRAL, abs=counted_attempts.DEFERRAL)
    assert puller._not_before > place.now
    assert events.named("branch_pull_deferred")[-1]["deaths"] == MAX_DEATHS
    assert await puller.pull()
    assert PULL_ATTEMPT not in commits.state.attempts
    assert events.named("branch_pull_suspected")


async def test_an_owner_that_lost_its_branch_learns_it_from_a_pull(place: Place) -> None:
    commits, _, late = await place.owner()
    _, _, puller = await place.owner()
    assert await puller.pull()
    assert commits.state.branch is not None
    late._looked = commits.state.branch.base
    late._look = nothing_known  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        await late.pull()


class Death(BaseException):
    """An end of the owner without any cleanup."""


async def nothing_known() -> int:
    return 1


async def moved(*_: object) -> None:
    raise UnprocessableError("it was created again", code="moved")


async def asked(place: Place, client: RebaserClient, action: Rebase | Marking) -> Message:
    """Return a request that is in the queue of the branch, and not decided."""
    headers, payload = encode(
        EnqueueUpdatesRequest(RequestId(f"asked-{place.context.new_id()}"), "ws", "fix", None, action=action)
    )
    await place.context.js.publish(place.context.subjects.requests(KEY), payload, headers)
    return (await place.queued())[-1]
