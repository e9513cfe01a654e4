"""Tests what counts as a death against a request that was being tried when its owner ended, and what does not."""

import time
from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from rebaser.change_set import processor as processing
from rebaser.change_set.attempts.held_requests import QueueBlocked
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Applied, Attempt, Kind
from rebaser_core.decisions.decide import DecidedBatch, decide
from rebaser_core.decisions.queued_request import QueuedRequest
from rebaser_core.errors import TransientError
from rebaser_core.ids import RequestId
from rebaser_core.messages import EnqueueUpdatesRequest, encode
from rebaser_core.state.change_set import ChangeSetState
from rebaser_core.streams.subjects import Subjects
from rebaser_core.streams.topology import TopologyOptions, streams
from rebaser_core.updates import Set
from tests.support.poison import KEY, Fleet, Owner

ONE_ATTEMPT = 500  # bytes; room for one `attempt` commit, not for two

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
def fleet(js: JetStream, subjects: Subjects) -> Fleet:
    return Fleet(js, subjects)


def dies() -> None:
    """End the owner without any cleanup."""
    raise ZeroDivisionError


def broken(act: Callable[[], None]) -> Callable[..., DecidedBatch]:
    def decide(*_: object) -> DecidedBatch:
        act()
        raise AssertionError

    return decide


async def end_in_a_try(
    fleet: Fleet, act: Callable[[], None], error: type[BaseException], *, redelivered: bool = True
) -> None:
    """Start an owner after a takeover, and let it end while it decides the first waiting request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing, "decide", broken(act))
        async with fleet.owner(redelivered=redelivered) as owner:
            with pytest.raises(error):
                await owner.decide_all()


async def test_an_owner_of_a_fresh_task_announces_nothing(fleet: Fleet) -> None:
    await fleet.send("a", "b", "c", "d")
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
    assert await fleet.log() == [(Kind.REBASE, ["a", "b", "c", "d"])]


async def test_after_a_takeover_one_batch_goes_one_by_one_and_the_rest_together(fleet: Fleet) -> None:
    """The last owner had at most one batch in its hands (3 requests here)."""
    await fleet.send("a", "b", "c", "d", "e")
    async with fleet.owner(redelivered=True) as owner:
        assert await owner.decide_all() == []
        assert owner.deaths == {}
    single = [[(Kind.ATTEMPT, []), (Kind.REBASE, [id_])] for id_ in ("a", "b", "c")]
    assert await fleet.log() == [*single[0], *single[1], *single[2], (Kind.REBASE, ["d", "e"])]


async def test_deaths_count_until_it_is_given_up_and_its_neighbours_are_applied(fleet: Fleet) -> None:
    await fleet.send("bad", "good")
    for number in (1, 2):
        await end_in_a_try(fleet, dies, ZeroDivisionError)
        async with fleet.owner(redelivered=True) as owner:
            assert owner.deaths == {1: number}
    async with fleet.owner(redelivered=True) as owner:
        assert await owner.decide_all() == ["poison"]
        state = owner.commits.state
        dead = state.outcomes.of(RequestId("bad")).decision
        assert (dead.sequence, dead.attempts, state.cells.keys()) == (1, 2, {"good"})  # type: ignore[comparison-overlap]
        assert state.attempts == {}


async def test_what_an_owner_died_of_is_tried_alone_also_by_one_whose_task_is_new(fleet: Fleet) -> None:
    await fleet.send("bad", "good")
    await end_in_a_try(fleet, dies, ZeroDivisionError)
    await end_in_a_try(fleet, dies, ZeroDivisionError, redelivered=False)
    async with fleet.owner(redelivered=False) as owner:
        assert owner.deaths == {1: 2}
        assert await owner.decide_all() == ["poison"]
        assert owner.commits.state.cells.keys() == {"good"}


async def test_a_suspect_whose_base_moved_is_decided_in_the_next_try(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.send("first", "second")
    commit = processing.Processor._commit

    async def move_base(*_: object) -> None:
        monkeypatch.setattr(processing.Processor, "_commit", commit)
        raise processing.BaseMoved

    monkeypatch.setattr(processing.Processor, "_commit", move_base)
    async with fleet.owner(redelivered=True) as owner:
        assert await owner.decide_all() == []
    assert [ids for _, ids in await fleet.log() if ids] == [["first"], ["second"]]


async def test_an_outage_or_a_shutdown_in_a_try_counts_for_nothing(fleet: Fleet) -> None:
    await fleet.send("good")

    def outage() -> None:
        raise TransientError("away")

    for _ in range(5):
        await end_in_a_try(fleet, outage, TransientError)
    scope = anyio.CancelScope()
    with pytest.MonkeyPatch.context() as patch, scope:
        patch.setattr(processing.RequestReader, "read", lambda *_: cancelled(scope))  # type: ignore[attr-defined]
        async with fleet.owner(redelivered=True) as owner:
            await owner.decide_all()
    assert scope.cancelled_caught
    async with fleet.owner(redelivered=True) as owner:
        assert owner.deaths == {}
        assert await owner.decide_all() == []


async def limit_log(fleet: Fleet, room: int | None) -> None:
    """Leave `room` bytes in the stream of all logs; None: no limit."""
    used = (await fleet.js.stream_info(fleet.subjects.commits_stream)).bytes
    options = TopologyOptions(commits_max_bytes=-1 if room is None else used + room)
    [logs] = [one for one in streams(fleet.subjects, options) if one["name"] == fleet.subjects.commits_stream]
    await fleet.js.ensure_stream(logs)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - an entry in a list sets no event
            await anyio.sleep(0.01)


async def test_a_full_log_counts_for_nothing_however_often_there_is_room_for_an_attempt_only(fleet: Fleet) -> None:
    """Each owner finds room to record its attempt, but neither for the request nor to take the attempt back."""
    await fleet.js.publish(*large_request(fleet))
    await limit_log(fleet, 1)
    async with fleet.owner(redelivered=True) as owner:
        with pytest.raises(TransientError):
            await owner.decide_all()
    assert await fleet.log() == []
    for _ in range(4):
        async with fleet.owner(redelivered=True) as owner, anyio.create_task_group() as group:
            assert owner.deaths == {}
            await limit_log(fleet, ONE_ATTEMPT)
            with capture_logs() as events:

                async def decide(owner: Owner = owner) -> None:
                    with pytest.raises(TransientError, match="maximum bytes"):
                        await owner.decide_all()

                group.start_soon(decide)
                await until(lambda events=events: "attempt_not_taken_back" in [one["event"] for one in events])  # type: ignore[misc]
            assert owner.deaths == {1: 1}
            await limit_log(fleet, ONE_ATTEMPT)
    await limit_log(fleet, None)
    async with fleet.owner(redelivered=True) as owner:
        assert owner.deaths == {}
        assert await owner.decide_all() == []
        assert owner.commits.state.cells.keys() == {"large"}


async def test_an_owner_that_waits_to_take_its_attempt_back_can_be_stopped(fleet: Fleet) -> None:
    await fleet.js.publish(*large_request(fleet))
    await limit_log(fleet, ONE_ATTEMPT)
    async with fleet.owner(redelivered=True) as owner, anyio.create_task_group() as group:
        with capture_logs() as events:
            group.start_soon(owner.decide_all)
            await until(lambda: "attempt_not_taken_back" in [one["event"] for one in events])
        assert "maximum bytes" in fleet.context.health.current(fleet.context.now())
        group.cancel_scope.cancel()
    await limit_log(fleet, None)
    async with fleet.owner(redelivered=True) as owner:
        assert owner.deaths == {1: 1}
        assert await owner.decide_all() == []


def large_request(fleet: Fleet) -> tuple[str, bytes, dict[str, str]]:
    """Return subject, payload and headers of a request whose commit is far larger than an `attempt` commit."""
    edit = Set("large", "x" * 5_000)
    headers, payload = encode(EnqueueUpdatesRequest(RequestId("large"), KEY.workspace, KEY.change_set, (edit,)))
    return fleet.subjects.requests(KEY), payload, headers


async def test_a_shutdown_counts_for_nothing_though_another_commit_is_under_way(fleet: Fleet) -> None:
    await fleet.send("good")
    scope, stopped = anyio.CancelScope(), anyio.Event()

    async def read(*_: object) -> None:
        stopped.set()
        await cancelled(scope)

    async with fleet.owner(redelivered=True) as owner, anyio.create_task_group() as group:

        async def append_meanwhile() -> None:
            await stopped.wait()
            async with owner.commits.append_lock():
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()

        group.start_soon(append_meanwhile)
        with pytest.MonkeyPatch.context() as patch, scope:
            patch.setattr(processing.RequestReader, "read", read)  # type: ignore[attr-defined]
            await owner.decide_all()
    assert scope.cancelled_caught
    async with fleet.owner(redelivered=True) as owner:
        assert owner.deaths == {}


async def test_a_try_that_hung_counts_though_its_owner_lives_on(fleet: Fleet) -> None:
    """The owner was paused until its lease ended, and then found that no other server had taken over."""
    await fleet.send("bad", "good")
    for number in (1, 2):
        with pytest.MonkeyPatch.context() as patch, anyio.CancelScope() as scope:
            patch.setattr(processing.RequestReader, "read", lambda *_, scope=scope: cancelled(scope))  # type: ignore[attr-defined]
            async with fleet.owner(redelivered=True, hung=True) as owner:
                await owner.decide_all()
        async with fleet.owner(redelivered=True) as owner:
            assert owner.deaths == {1: number}
    async with fleet.owner(redelivered=True) as owner:
        assert await owner.decide_all() == ["poison"]
        assert owner.commits.state.cells.keys() == {"good"}


async def test_an_owner_that_lost_its_lease_before_a_try_blames_nothing(fleet: Fleet) -> None:
    """The owner continues after a pause, and its next attempt is cancelled before it begins."""
    await fleet.send("good")
    async with fleet.owner(redelivered=True, hung=True) as owner:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await owner.decide_all()
    assert await fleet.log() == []
    async with fleet.owner(redelivered=True) as owner:
        assert owner.deaths == {}
        assert await owner.decide_all() == []


async def test_what_came_twice_spares_no_request_behind_it(fleet: Fleet) -> None:
    """Without recorded attempts, every owner would answer the copy again and die of the next request."""
    await fleet.send("once")
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
    for number in range(3):  # a whole batch
        await fleet.send("once", Nats_Msg_Id=f"{KEY}.once#{number}")
    await fleet.send("bad")

    def die_of_bad(state: ChangeSetState, applied: Applied, incoming: Sequence[QueuedRequest]) -> DecidedBatch:
        if incoming[-1].request_id == "bad":
            dies()
        return decide(state, applied, incoming)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing, "decide", die_of_bad)
        for _ in range(2):
            async with fleet.owner(redelivered=True) as owner:
                with pytest.raises(ZeroDivisionError):
                    await owner.decide_all()
    async with fleet.owner(redelivered=True) as owner:
        assert owner.deaths == {5: 2}
        assert await owner.decide_all() == ["poison"]


async def cancelled(scope: anyio.CancelScope) -> None:
    """Stop the owner while it reads the request."""
    scope.cancel()
    await anyio.sleep_forever()


async def test_a_held_request_is_no_suspect(fleet: Fleet) -> None:
    """The request waits for a newer server over many takeovers; time bounds that wait, not their number."""
    await fleet.send("new", X_MESSAGE_VERSION="99")
    for number in range(1, 6):
        async with fleet.owner(redelivered=True) as owner:
            with pytest.raises(QueueBlocked):
                await owner.decide_all()
            assert owner.commits.state.attempts == {1: Attempt(1, number, 1_000)}


async def test_a_suspect_that_has_to_wait_stays_one(fleet: Fleet) -> None:
    await fleet.send("new", X_MESSAGE_VERSION="99")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing.RequestReader, "read", lambda *_: dies())  # type: ignore[attr-defined]
        async with fleet.owner(redelivered=True) as owner:
            with pytest.raises(ZeroDivisionError):
                await owner.decide_all()
    fleet.now_ms += 60_000  # its wait begins when it has to wait, not when an owner died of it
    async with fleet.owner(redelivered=True) as owner:
        with pytest.raises(QueueBlocked):
            await owner.decide_all()
        assert owner.commits.state.attempts == {1: Attempt(1, 1, 61_000, 1)}


async def test_a_process_tries_one_suspect_at_a_time(fleet: Fleet) -> None:
    """Then the death of the process belongs to one request, and is not counted against an innocent one."""
    await fleet.send("suspect")
    await end_in_a_try(fleet, dies, ZeroDivisionError)
    lock = fleet.context.suspect_request_lock
    async with fleet.owner(redelivered=True) as owner, anyio.create_task_group() as group, lock:
        group.start_soon(owner.decide_all)
        while not lock.statistics().tasks_waiting:
            await anyio.lowlevel.checkpoint()
        assert owner.deaths == {1: 1}, "announced before it was its turn"
    assert [ids for _, ids in await fleet.log() if ids] == [["suspect"]]


async def test_poison_that_its_client_sends_again_is_answered_unread(fleet: Fleet) -> None:
    await fleet.send("bad")
    for _ in range(2):
        await end_in_a_try(fleet, dies, ZeroDivisionError)
    async with fleet.owner(redelivered=True) as owner:
        assert await owner.decide_all() == ["poison"]
    await fleet.send("bad", Nats_Msg_Id=f"{KEY}.bad#again")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing.RequestReader, "read", lambda *_: dies())  # type: ignore[attr-defined]
        async with fleet.owner(redelivered=False) as owner:
            assert await owner.decide_all() == []
    await fleet.send("bad", Nats_Msg_Id=f"{KEY}.bad#1", X_Redrive="1")
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == []
        assert owner.commits.state.cells.keys() == {"bad"}


async def test_poison_that_was_sent_twice_is_read_by_nobody_once_it_is_known(fleet: Fleet) -> None:
    await fleet.send("bad")
    await fleet.send("bad", Nats_Msg_Id=f"{KEY}.bad#again")
    for _ in range(2):
        await end_in_a_try(fleet, dies, ZeroDivisionError)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing.RequestReader, "read", lambda *_: dies())  # type: ignore[attr-defined]
        async with fleet.owner(redelivered=True) as owner:
            assert await owner.decide_all() == ["poison"]
    assert [ids for _, ids in await fleet.log() if ids] == [["bad"]]


async def test_redriven_poison_that_nobody_deleted_yet_is_read_by_nobody(fleet: Fleet) -> None:
    """Its owner died after deciding it; the next one copies it to the dead letters, and deletes it."""
    await fleet.send("bad", Nats_Msg_Id=f"{KEY}.bad#1", X_Redrive="1")
    for _ in range(2):
        await end_in_a_try(fleet, dies, ZeroDivisionError)
    async with fleet.owner(redelivered=True) as owner:
        messages = owner.queued
        assert await owner.decide_all() == ["poison"]
        dead = owner.commits.state.recorded(RequestId("bad"))
        assert dead is not None
        assert (dead.decision.redrive, dead.decision.attempts) == (1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing.RequestReader, "read", lambda *_: dies())  # type: ignore[attr-defined]
        async with fleet.owner(redelivered=True) as owner:
            owner.queued = messages
            assert await owner.decide_all() == ["poison"]


@pytest.mark.parametrize("redrive", ["0", "1"])
async def test_a_queue_of_requests_for_a_newer_server_waits_once_not_for_each(fleet: Fleet, redrive: str) -> None:
    """The requests behind the first one waited with it, whoever owns the change set by then."""
    await fleet.send("new1", "new2", "new3", "new4", X_MESSAGE_VERSION="99", X_Redrive=redrive)
    await fleet.send("old")
    fleet.now_ms = time.time_ns() // 1_000_000
    async with fleet.owner(redelivered=False) as owner:
        with pytest.raises(QueueBlocked):
            await owner.decide_all()
    fleet.now_ms += 30_000
    async with fleet.owner(redelivered=False) as owner:
        owner.queued = owner.queued[:1]
        assert await owner.decide_all() == ["unsupported_version"]
    async with fleet.owner(redelivered=False) as owner:
        assert await owner.decide_all() == ["unsupported_version"] * 3
        assert owner.commits.state.cells.keys() == {"old"}
    fleet.now_ms += 60_000  # long ago, so there may be a newer server by now
    await fleet.send("new5", X_MESSAGE_VERSION="99")
    async with fleet.owner(redelivered=False) as owner:
        with pytest.raises(QueueBlocked) as blocked:
            await owner.decide_all()
        assert blocked.value.time_left == 30
