"""A DVU that kills or hangs its owners: what counts as a death, and that no request waits for it."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import numpy as np
import pytest

from rebaser.change_set import serial_dvu
from rebaser.change_set.attempts import counted_attempts
from rebaser.change_set.attempts.counted_attempts import DEFERRAL, DEFERRAL_MAX
from rebaser.change_set.loading import open_log
from rebaser.change_set.log.commit_log import CommitLog
from rebaser.change_set.serial_dvu import SerialDvu
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser.runtime.context import Context
from rebaser.settings import Settings
from rebaser_client import Derive, RebaserClient, Remove, Set, Update
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import DVU_ATTEMPT, Kind
from rebaser_core.errors import DvuError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.state.computed_table import ComputedTable
from rebaser_core.state.kinds import NULL
from rebaser_core.streams.subjects import Subjects
from rebaser_core.values import Fault, State
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.owners import Death, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

KEY = ChangeSetKey("ws", "cs")
MAX_DEATHS = 2


class Engine:
    """Raises the exception `ends`, or evaluates in this process."""

    state = "ready"
    load = ((0, 0), (0, 0))
    functions: dict[str, str] = {}  # noqa: RUF012 - nothing is added
    tags: dict[str, str] = {}  # noqa: RUF012 - nothing is added

    def __init__(self) -> None:
        self.ends: BaseException | None = None
        self.away = False

    async def available(self) -> None:
        if self.away:
            raise DvuError("Spark is away", code="spark_down")

    async def evaluate(self, packets: Sequence[bytes], **_: object) -> list[list[bytes]]:
        if self.ends is not None:
            raise self.ends
        return [evaluate_packet(packet) for packet in packets]


class Fleet:
    """Owners of one change set that owes a DVU, one after the other. `now_ms` is their clock."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.engine = Engine()
        self.now_ms = 10_000_000
        settings = Settings(server_id="test", max_deaths=MAX_DEATHS)
        self.context = replace(context_of(js, subjects, settings, self.engine), now_ms=lambda: self.now_ms)

    async def edit(self, number: int) -> None:
        commits = await open_log(self.context, KEY)
        delta = (Set("a", number), Derive("double", "sum", {"of": ("a", "a")}))
        async with commits.append_lock():
            await commits.append(commits.draft(Kind.REBASE, covers=commits.state.covers, delta=delta, debt=2))

    async def owner(self, *, redelivered: bool = True, hung: bool = False) -> tuple[CommitLog, SerialDvu]:
        commits = await open_log(self.context, KEY)
        return commits, SerialDvu(self.context, commits, redelivered=redelivered, hung=lambda: hung)

    async def owner_ends(self, how: BaseException, error: type[BaseException]) -> None:
        """Start the next owner, and let its DVU end with `how`."""
        self.engine.ends = how
        _, dvu = await self.owner()
        with pytest.raises(error):
            await dvu.run()
        assert not dvu._context.running_updates
        self.engine.ends = None

    async def deaths(self) -> int:
        tried = (await open_log(self.context, KEY)).state.attempts.get(DVU_ATTEMPT)
        return tried.deaths if tried else 0

    async def deferral(self) -> float:
        """Return for how long the next owner defers the DVU."""
        _, dvu = await self.owner(redelivered=False)
        return dvu.deferral()


@pytest.fixture
async def fleet(js: JetStream, subjects: Subjects) -> Fleet:
    made = Fleet(js, subjects)
    await made.edit(1)
    return made


async def kinds(context: Context) -> list[Kind]:
    last = (await context.reader.load(KEY)).state.last
    found = []
    async for commit in context.reader.follow(KEY, 0):
        found.append(commit.kind)
        if commit.sequence == last:
            break
    return found


async def test_only_an_owner_that_follows_another_announces_its_dvus_and_only_until_one_lands(fleet: Fleet) -> None:
    commits, dvu = await fleet.owner(redelivered=False)
    await dvu.run()
    await fleet.edit(2)
    commits, dvu = await fleet.owner()
    await dvu.run()
    await dvu.run()
    assert not dvu._context.running_updates
    assert commits.state.attempts == {}
    assert await kinds(fleet.context) == [Kind.REBASE, Kind.DVU, Kind.REBASE, Kind.ATTEMPT, Kind.DVU, Kind.DVU]


async def test_what_is_no_death_does_not_count(fleet: Fleet) -> None:
    await fleet.owner_ends(DvuError("the job failed"), DvuError)
    await fleet.owner_ends(MemoryError(), DvuError)
    _, dvu = await fleet.owner()
    with anyio.CancelScope() as scope:  # a shutdown
        fleet.engine.evaluate = lambda *_, **__: cancelled(scope)  # type: ignore[method-assign]
        await dvu.run()
    assert scope.cancelled_caught
    assert await fleet.deaths() == 0
    assert await kinds(fleet.context) == [Kind.REBASE, *[Kind.ATTEMPT, Kind.ATTEMPT] * 3]


@pytest.mark.parametrize(("edit", "owes", "double"), [(Remove("nosuch"), False, 2), (Set("double", 7), True, 7)])
async def test_what_is_decided_while_an_update_runs_is_not_overwritten_and_covered_if_it_owes_nothing(
    fleet: Fleet, edit: Update, owes: bool, double: int
) -> None:
    """If the edit owes no update, no later update covers it, and a caller that waits for derived values would wait for
    ever."""
    commits, dvu = await fleet.owner(redelivered=False)
    evaluate = fleet.engine.evaluate

    async def edit_meanwhile(packets: Sequence[bytes], **more: object) -> list[list[bytes]]:
        async with commits.append_lock():
            await commits.append(commits.draft(Kind.REBASE, covers=0, delta=(edit,), debt=commits.state.debt))
        return await evaluate(packets, **more)

    fleet.engine.evaluate = edit_meanwhile  # type: ignore[method-assign]
    await dvu.run()
    state = (await fleet.context.reader.load(KEY)).state
    assert {id_: value.value for id_, value in state.values().items()} == {"a": 1, "double": double}
    assert (state.owes, state.covers) == (owes, 1 if owes else state.last)


async def test_what_is_derived_anew_while_an_update_waits_to_append_gets_no_result_of_its_former_definition(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, dvu = await fleet.owner(redelivered=False)
    append_lock = commits.append_lock

    @asynccontextmanager
    async def taken_by_another_first() -> AsyncIterator[None]:
        async with append_lock():
            edit = (Derive("double", "sum", {"of": ("a",)}),)
            await commits.append(commits.draft(Kind.REBASE, covers=0, delta=edit, debt=commits.state.debt))
        async with append_lock():
            yield

    monkeypatch.setattr(commits, "append_lock", taken_by_another_first)
    await dvu.run()
    state = (await fleet.context.reader.load(KEY)).state
    assert (state.values()["double"].state, state.values()["double"].value) == (State.STALE, None)


async def test_while_spark_is_away_nothing_is_tried_and_the_log_says_nothing(fleet: Fleet) -> None:
    fleet.engine.away = True
    _, dvu = await fleet.owner()
    for _ in range(3):
        with pytest.raises(DvuError, match="Spark is away"):
            await dvu.run()
    fleet.context = replace(fleet.context, settings=fleet.context.settings.model_copy(update={"dvu_timeout": 0.01}))
    _, hanging = await fleet.owner()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet.engine, "available", anyio.sleep_forever)
        with pytest.raises(DvuError, match=r"not available within 0\.01 s"):
            await hanging.run()
    assert await kinds(fleet.context) == [Kind.REBASE]
    fleet.engine.away = False
    await dvu.run()
    assert await kinds(fleet.context) == [Kind.REBASE, Kind.ATTEMPT, Kind.DVU]


@pytest.mark.parametrize("count", [1, 30])
async def test_a_value_whose_function_ended_its_process_is_named_in_the_log(
    fleet: Fleet, events: Events, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    why = "function 'f' ended its process"
    faults = {at: Fault("crashed", why, f"v{at}") for at in range(count)}
    faults[count] = Fault("failed", "no", "other")
    ids = [*(f"v{at}" for at in range(count)), "other"]
    found = ComputedTable(ids, np.full(len(ids), NULL, np.uint8), np.zeros(len(ids), np.int64), faults=faults)

    async def update(*_: object, **__: object) -> ComputedTable:
        return found

    monkeypatch.setattr(serial_dvu, "update", update)
    _, dvu = await fleet.owner(redelivered=False)
    await dvu.run()
    told = events.named("value_crashed")
    assert [one["id"] for one in told] == [f"v{at}" for at in range(min(count, serial_dvu.CRASHED_NAMED))]
    assert {(one["reason"], one["total"]) for one in told} == {(why, count)}


async def test_a_dvu_that_hung_counts_though_its_owner_lives_on(fleet: Fleet) -> None:
    _, dvu = await fleet.owner(hung=True)
    with anyio.CancelScope() as scope:
        fleet.engine.evaluate = lambda *_, **__: cancelled(scope)  # type: ignore[method-assign]
        await dvu.run()
    assert scope.cancelled_caught
    assert await fleet.deaths() == 1


@pytest.mark.parametrize("first", [DvuError("the job failed"), MemoryError()], ids=["failed", "broke"])
async def test_an_owner_whose_dvu_failed_announces_the_next_try_as_well(fleet: Fleet, first: Exception) -> None:
    _, dvu = await fleet.owner()
    fleet.engine.ends = first
    with pytest.raises(DvuError):
        await dvu.run()
    fleet.engine.ends = Death()
    with pytest.raises(Death):
        await dvu.run()
    assert await fleet.deaths() == 1, "nothing says what this owner died of"


async def test_what_ended_an_owner_is_announced_also_by_one_whose_task_is_new(fleet: Fleet) -> None:
    """The owner in between deferred the DVU, and gave its task back."""
    await fleet.owner_ends(Death(), Death)
    _, dvu = await fleet.owner(redelivered=False)
    fleet.engine.ends = Death()
    with pytest.raises(Death):
        await dvu.run()
    assert await fleet.deaths() == 2


async def cancelled(scope: anyio.CancelScope) -> list[list[bytes]]:
    scope.cancel()
    await anyio.sleep_forever()
    raise AssertionError


async def test_a_dvu_that_ends_its_owners_is_put_off_longer_each_time(fleet: Fleet, events: Events) -> None:
    expected = [0.0, DEFERRAL, 2 * DEFERRAL, 4 * DEFERRAL]
    for deaths, seconds in enumerate(expected, start=1):
        await fleet.owner_ends(Death(), Death)
        assert await fleet.deaths() == deaths
        assert await fleet.deferral() == seconds
    fleet.now_ms += 15_000
    assert await fleet.deferral() == 4 * DEFERRAL - 15
    await fleet.owner_ends(DvuError("Spark is away"), DvuError)
    assert await fleet.deferral() == 4 * DEFERRAL, "an end that is none of its doing neither counts nor forgives"
    fleet.now_ms -= 3_600_000
    assert await fleet.deferral() == 4 * DEFERRAL, "a clock that is behind"
    for _ in range(4):
        await fleet.owner_ends(Death(), Death)
    assert await fleet.deferral() == DEFERRAL_MAX
    assert events.named("dvu_deferred")[-1]["deaths"] == 8
    _, dvu = await fleet.owner()
    await dvu.run()
    assert await fleet.deaths() == 0
    assert await fleet.deferral() == 0


async def test_a_process_tries_one_suspect_at_a_time(fleet: Fleet) -> None:
    await fleet.owner_ends(Death(), Death)
    _, dvu = await fleet.owner()

    async def run_in_vain() -> None:
        with pytest.raises(DvuError, match="another update"):
            await dvu.run()

    async with fleet.context.suspect_dvu_lock, anyio.create_task_group() as group:
        group.start_soon(run_in_vain)
    assert await fleet.deaths() == 1, "announced before it was its turn"
    await dvu.run()
    assert await fleet.deaths() == 0


async def test_requests_go_on_while_a_dvu_is_put_off_and_it_is_tried_again(
    fleet: Fleet, js: JetStream, subjects: Subjects, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.now_ms = time.time_ns() // 1_000_000
    for _ in range(MAX_DEATHS):
        await fleet.owner_ends(Death(), Death)
    monkeypatch.setattr(counted_attempts, "DEFERRAL", 500.0)
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        async with serving(js, subjects, fleet.engine, max_deaths=MAX_DEATHS) as server:
            await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 21)])
            deferred = "the update of ws.cs is deferred: 2 of the servers that ran it died or hung"
            with anyio.fail_after(60):
                while deferred not in str(server.snapshot().trouble):  # noqa: ASYNC110 - the owner tells nobody else
                    await anyio.sleep(0.01)
            assert server.census().updates == {"put_off": 1}
        assert Kind.DVU not in await kinds(fleet.context)
        monkeypatch.setattr(counted_attempts, "DEFERRAL", 0.1)
        async with serving(js, subjects, fleet.engine, max_deaths=MAX_DEATHS):
            await client.enqueue_updates_with_reply("ws", "cs", [Set("b", 1)], wait="derived")
        assert (await client.values("ws", "cs"))["double"].value == 42
    assert await fleet.deaths() == 0
