"""The engine on a cluster: a master, two workers and a Connect server of their own."""

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from rebaser.dvu.engine import Engine, EngineSettings
from rebaser.dvu.plan import plan
from rebaser_core.updates import Derive, Set
from tests.spark.graphs import Book
from tests.spark.packets import ELEMENTS, small
from tests.spark.processes import children
from tests.spark.standalone import Program, Standalone, standalone

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


def busy(program: Program) -> float:
    """Processor seconds that Python took below `program`, by now."""
    todo, ticks = children(program.pid), 0
    while todo:
        pid = todo.pop()
        try:
            todo += children(pid)
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "python" in name:
            ticks += sum(map(int, rest.split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def test_a_worker_is_killed_in_the_middle_of_an_update(cluster: Standalone) -> None:
    """Both work on it; what the dead one had is computed again by the other, and the next update runs, too."""
    derived = [Derive(f"v{at}", "cel", {"l": "l"}, {"expr": f"size(l.map(x, x)) + {at}"}) for at in range(4)]
    plans = [plan(Book([Set("l", list(range(ELEMENTS))), *half]).state.view()) for half in (derived[:2], derived[2:])]
    packets = [packet for one in plans for packet in one.next_wave()]
    assert len(packets) == 2  # a task each
    with anyio.fail_after(280):
        async with Engine(cluster.url, EngineSettings(parallelism=2)) as engine:
            await engine.ready.wait()
            results: list[list[bytes]] = []
            before = [busy(worker) for worker in cluster.workers]

            async def kill() -> None:
                while any(busy(worker) < was + 0.5 for worker, was in zip(cluster.workers, before, strict=True)):  # noqa: ASYNC110 - other processes tell nobody
                    await anyio.sleep(0.02)
                assert results == []  # still at it
                cluster.workers[0].kill()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kill)
                results += await engine.evaluate(packets, label="killed")
            found: list[object] = []
            for one, result in zip(plans, results, strict=True):
                one.absorb(result)
                found += [computed.value for computed in one.computed()]
            assert sorted(found) == [ELEMENTS + at for at in range(4)]  # type: ignore[type-var]
            made, packets = small(1)
            made.absorb((await engine.evaluate(packets, label="after"))[0])
            assert [computed.value for computed in made.computed()] == [2]
            assert engine.state == "ready"
