"""Large and slow updates do not delay small ones, and Spark frees the resources of a job that is cancelled."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from rebaser.dvu.spark.engine import Engine
from rebaser.dvu.spark.scheduler import MAX_LARGE_JOBS
from rebaser_client import RebaserClient
from rebaser_client.jetstream import JetStream
from rebaser_core.errors import DvuError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from tests.support.holding import held, held_packet, holder, holding
from tests.support.owners import serving
from tests.support.packets import small
from tests.support.processes import ended

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

SMALL = 200


@pytest.fixture(autouse=True)
def workers_that_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebaser.dvu.worker.evaluate.evaluate_batches", holding)


@pytest.fixture
async def client(nats_url: str, subjects: Subjects, topology: object) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as client:
        yield client


async def test_small_updates_wait_for_no_large_nor_slow_one(engine: Engine, tmp_path: Path) -> None:
    """There are more large updates than slots for them, and two small ones that never end."""
    done: list[int] = []

    async def hold(name: str, packets: int) -> None:
        await engine.evaluate([held_packet(tmp_path / f"{name}{at}") for at in range(packets)], label=name)
        done.append(-1)

    async def one(value: int) -> None:
        made, packets = small(value)
        [results] = await engine.evaluate(packets, label="small")
        made.absorb(results)
        assert [computed.value for computed in made.computed()] == [value + 1]
        done.append(value)

    with anyio.fail_after(240):
        async with anyio.create_task_group() as held_up:
            for number in range(MAX_LARGE_JOBS + 2):
                held_up.start_soon(hold, f"large{number}-", 2)
            for number in range(MAX_LARGE_JOBS):
                await holder(tmp_path / f"large{number}-0")
            for number in range(2):
                held_up.start_soon(hold, f"slow{number}-", 1)
                await holder(tmp_path / f"slow{number}-0")
            async with anyio.create_task_group() as tasks:
                for value in range(SMALL):
                    tasks.start_soon(one, value)
            assert sorted(done) == list(range(SMALL))
            assert not (tmp_path / f"large{MAX_LARGE_JOBS}-0").exists()
            held_up.cancel_scope.cancel()


async def test_spark_lets_go_of_a_late_job(engine: Engine, tmp_path: Path) -> None:
    place = tmp_path / "late"
    with anyio.fail_after(240):
        while not await anyio.Path(place).exists():  # The time may be over before a worker begins.
            with pytest.raises(DvuError, match="longer than"):
                await engine.evaluate([held_packet(place)], label="late", timeout=5)
        await ended(await holder(place))


@pytest.mark.parametrize("reason", ["fenced", "shutdown", "late"])
async def test_spark_lets_go_of_an_owner_s_update(
    engine: Engine, tmp_path: Path, js: JetStream, subjects: Subjects, client: RebaserClient, reason: str
) -> None:
    """The update belongs to an owner that was fenced or lost its lease, whose server stops, or whose time is over."""
    place = tmp_path / "held"
    limits = {"dvu_timeout": 5.0} if reason == "late" else {}
    with anyio.fail_after(240):
        async with serving(js, subjects, engine, **limits) as server:
            await client.enqueue_updates_with_reply("ws", "cs", held(place))
            process = await holder(place)
            if reason == "fenced":
                server._owners[ChangeSetKey("ws", "cs")].lose_task(hung=True)
            if reason != "shutdown":
                await ended(process)
        await ended(process)
    assert engine.state == "ready"
