"""The engine on a real Spark: its results, shared jobs, and failures."""

import gc
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import ModuleType

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from anyio.abc import TaskGroup

from rebaser.dvu.planning.full_plan import FullGraphPlan
from rebaser.dvu.planning.planner import plan
from rebaser.dvu.spark.engine import Engine, EngineSettings
from rebaser.dvu.spark.scheduler import EvaluateCall
from rebaser.dvu.update import update
from rebaser.dvu.wire import mailbox
from rebaser.dvu.wire.packet import Encoded
from rebaser.dvu.worker.evaluate import evaluate_batches, evaluate_packet
from rebaser_core.errors import ConfigError, DvuError
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.updates import Derive, Set
from tests.benchmarks.evaluate import graph
from tests.conftest import Events
from tests.support.graphs import Book, expected
from tests.support.packets import foreign, slow, small
from tests.support.processes import any_ended, children, command, workers
from tests.support.updates_on_spark import one

pytestmark = [pytest.mark.anyio, pytest.mark.spark]


async def test_an_update_on_spark_is_what_a_naive_evaluator_says(engine: Engine) -> None:
    book = Book(
        [
            Set("a", 2),
            Derive("b", "cel", {"a": "a"}, {"expr": "a * 1.5"}),
            Derive("c", "sum", {"values": ("a", "b")}),
            Derive("d", "sum", {"values": ("c", "gone")}),
            Derive("e", "list", {"values": ("d", "e")}),
        ]
    )
    with book.state.view() as view:
        book.commit(await update(view, engine, label="test"), view.sequence)
    assert book.values() == expected(book.state.updates())


async def test_a_large_packet_of_numbers_is_compiled_code_s_in_workers_too(engine: Engine, jvm_pid: int) -> None:
    """Workers are forked from Rebaser's daemon, which has already loaded the compiled code."""
    data = graph("islands", Thresholds().kernel_load_min_elements + 10_000).encode()
    here = await to_thread.run_sync(evaluate_packet, data)
    assert await engine.evaluate([data], label="large") == [here]
    assert any("rebaser.dvu.worker.daemon" in command(pid) for pid in children(jvm_pid))


async def test_much_of_a_large_change_set_is_swept_over_a_structure_that_workers_keep(engine: Engine) -> None:
    count = 12_000
    book = Book([Set(f"x{at}", at) for at in range(count)])
    book.edit(*[Derive(f"y{at}", "sum", {"values": (f"x{at}", f"x{at // 2}")}) for at in range(count)])
    for more in (0, 1, 0.5):
        book.edit(*[Set(f"x{at}", at + more) for at in range(count)])
        with book.state.view() as view:
            made = plan(view)
            assert isinstance(made, FullGraphPlan)
            assert (made.unsent_structure is not None) == (more == 0)  # only with the first update
            book.commit(await update(view, engine, label="ws/cs"), view.sequence)
        cells = book.state.cells
        assert [cells[f"y{at}"].value for at in range(count)] == [at + at // 2 + 2 * more for at in range(count)]


async def test_what_needs_no_function_needs_no_spark(engine: Engine) -> None:
    jobs = engine._scheduler.jobs_started
    book = Book([Derive("a", "sum", {"values": ("b",)}), Derive("b", "sum", {"values": ("a",)})])
    with book.state.view() as view:
        book.commit(await update(view, engine, label="test"), view.sequence)
    assert book.values() == expected(book.state.updates())
    with book.state.view() as view:
        assert await update(view, engine, label="test") == ()
    assert engine._scheduler.jobs_started == jobs


async def test_results_larger_than_a_message_arrive(engine: Engine) -> None:
    text = "x" * 200_000
    book = Book([Set("t", text), *(Derive(f"v{at}", "concat", {"x": "t"}) for at in range(100))])
    with book.state.view() as view:
        computed = await update(view, engine, label="large")
    assert len(computed) == 100
    assert all(one.value == text for one in computed)


@pytest.mark.parametrize("writable", [True, False])
async def test_what_is_large_goes_by_file_and_leaves_none(
    engine: Engine, writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book([Set("t", "x" * 200_000), *(Derive(f"v{at}", "concat", {"x": "t"}) for at in range(4))])
    left: list[bool] = []
    put = mailbox.put

    def left_here(folder: str, name: str, data: Encoded) -> bool:
        left.append(put(folder if writable else f"{folder}-gone", name, data))
        return left[-1]

    monkeypatch.setattr(mailbox, "put", left_here)
    with book.state.view() as view:
        computed = await update(view, engine, label="by file")
    assert [len(str(one.value)) for one in computed] == [200_000] * 4
    assert left == [writable]
    folder = engine._sessions._jvm.mailboxes if engine._sessions._jvm else None
    assert folder is not None
    assert not list(folder.iterdir())


async def test_callers_that_are_ready_together_share_jobs(engine: Engine) -> None:
    jobs = engine._scheduler.jobs_started
    async with anyio.create_task_group() as tasks:
        for value in range(50):
            tasks.start_soon(one, engine, value)
    assert engine._scheduler.jobs_started - jobs <= 10


async def test_a_packet_of_another_release_fails_its_own_caller_only(engine: Engine, events: Events) -> None:
    errors: list[DvuError] = []

    async def wrong() -> None:
        with pytest.raises(DvuError, match="another release") as caught:
            await engine.evaluate(foreign(), label="wrong")
        assert caught.value.code == "other_code"
        errors.append(caught.value)

    async with anyio.create_task_group() as tasks:
        for value in range(6):
            tasks.start_soon(one, engine, value)
        tasks.start_soon(wrong)
        for value in range(6):
            tasks.start_soon(one, engine, value)
    assert len(errors) == 1
    assert any(entry["callers"] > 1 for entry in events.named("dvu_job_failed")), "they shared no job"
    assert engine.state == "ready"


async def test_a_job_that_takes_long_says_how_far_it_is(engine: Engine) -> None:
    told: list[tuple[int, int]] = []
    tags = set[str]()
    with anyio.CancelScope() as scope:

        def arrived(packets: int, values: int) -> None:
            told.append((packets, values))
            tags.add(engine.tags["how far"])
            if values >= 2:
                scope.cancel()

        with anyio.fail_after(240):
            await engine.evaluate(slow(1000), label="how far", arrived=arrived)
    assert scope.cancelled_caught
    assert {packets for packets, _ in told} == {0}
    values = [values for _, values in told]
    assert values == sorted(values)
    assert 2 <= values[-1] < 1000
    assert [tag.startswith("rebaser-") for tag in tags] == [True]
    await one(engine, 1)


async def test_a_late_job_is_ended_and_its_worker_too(engine: Engine, jvm_pid: int) -> None:
    await one(engine, 1)  # starts a worker, which the next job will use
    while True:  # on a busy machine, the time may be over before a worker begins
        idle = workers(jvm_pid)
        with pytest.raises(DvuError, match="longer than 2 s") as caught:
            await engine.evaluate(slow(30), label="slow", timeout=2)
        assert caught.value.code == "late"
        with anyio.move_on_after(30):
            await any_ended(idle)
            break
    assert engine.state == "ready"
    await one(engine, 1)


async def test_a_late_job_with_several_callers_is_split(engine: Engine, events: Events) -> None:
    """Every caller that shares a job with a slow packet gets its results, and the caller of the slow packet gets an
    error."""
    outcomes: list[str] = []

    async def late() -> None:
        with pytest.raises(DvuError) as caught:
            await engine.evaluate(slow(30), label="slow among others", timeout=2)
        outcomes.append(caught.value.code)

    async with anyio.create_task_group() as tasks:
        for value in range(4):
            tasks.start_soon(one, engine, value)
        tasks.start_soon(late)
        for value in range(4):
            tasks.start_soon(one, engine, value)
    assert outcomes == ["late"]
    assert any(entry["callers"] > 1 for entry in events.named("dvu_job_failed")), "they shared no job"


async def test_a_job_that_nobody_waits_for_is_interrupted(engine: Engine, events: Events) -> None:
    """The caller waits until the job is interrupted; then both lanes are free."""
    for _ in range(3):
        async with anyio.create_task_group() as tasks:

            async def watch(tasks: TaskGroup = tasks) -> None:
                await events.wait_for(lambda entry: entry["event"] == "dvu_job")
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            await engine.evaluate(slow(30), label="abandoned")
    with anyio.fail_after(120):
        await one(engine, 1)
    assert engine.state == "ready"
    assert not events.named("dvu_job_failed")


async def test_a_caller_that_leaves_takes_no_other_with_it(engine: Engine, events: Events) -> None:
    async with anyio.create_task_group() as others:
        for value in range(3):
            others.start_soon(one, engine, value)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await engine.evaluate(slow(30), label="left")
        for value in range(3):
            others.start_soon(one, engine, value)
    assert scope.cancelled_caught
    assert not events.named("dvu_job_failed")


async def test_a_server_that_hangs_holds_nobody(engine: Engine, jvm_pid: int, events: Events) -> None:
    """The connection is broken, the caller returns, and no thread remains."""
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await events.wait_for(lambda entry: entry["event"] == "dvu_job")
            os.kill(jvm_pid, signal.SIGSTOP)
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await anyio.lowlevel.checkpoint()
        try:
            with anyio.fail_after(120):
                await engine.evaluate(slow(30), label="hung")
        finally:
            with anyio.CancelScope(shield=True):
                held = engine._sessions._active
                if held is not None:
                    await held.retired.wait()
            os.kill(jvm_pid, signal.SIGCONT)
    await one(engine, 1)
    assert engine.state == "ready"


async def test_workers_without_this_package_are_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_here")
    exec("def evaluate(batches):\n    yield from batches\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    monkeypatch.setattr("rebaser.dvu.worker.evaluate.evaluate_batches", module.evaluate)
    with pytest.raises(DvuError, match=r"lack a package .No module named 'only_here'.: install it"):
        await engine.evaluate(small()[1], label="lonely")
    monkeypatch.undo()
    assert engine.state == "ready"
    await one(engine, 1)


@pytest.mark.parametrize("error", ["MemoryError()", 'RuntimeError("can\'t start new thread")'])
async def test_a_limit_of_the_workers_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"def evaluate(batches):\n    raise {error}\n    yield\n", namespace)
    monkeypatch.setattr("rebaser.dvu.worker.evaluate.evaluate_batches", namespace["evaluate"])
    with pytest.raises(
        DvuError, match=r"reached a limit of memory or threads \((Memory|Runtime)Error.*raise the limit"
    ):
        await engine.evaluate(small()[1], label="poor")
    monkeypatch.undo()
    await one(engine, 1)


async def test_a_call_that_was_answered_is_in_no_circle(engine: Engine) -> None:
    """Results may refer to files that are deleted, and objects in a reference cycle live until a garbage collection."""
    gc.collect()
    gc.disable()
    try:
        await one(engine, 1)
        with anyio.fail_after(60):
            while any(isinstance(found, EvaluateCall) and found.job is not None for found in gc.get_objects()):  # noqa: ASYNC110
                await anyio.sleep(0.01)
    finally:
        gc.enable()


async def test_a_worker_that_dies_fails_its_job_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebaser.dvu.worker.evaluate.evaluate_batches", die)
    with pytest.raises(DvuError, match="the Spark job failed"):
        await engine.evaluate(small()[1], label="dying")
    monkeypatch.undo()
    assert engine.state == "ready"
    await one(engine, 1)


def die(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """End the worker, as the OOM killer does."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


async def test_a_job_under_which_a_worker_dies_is_repeated_with_plug_ins_apart(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebaser.dvu.worker.evaluate.evaluate_batches", die_unless_apart)
    async with anyio.create_task_group() as tasks:
        for value in range(3):
            tasks.start_soon(one, engine, value)


def die_unless_apart(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not all(batch.column("isolate").to_pylist()):
            os._exit(3)
        yield from evaluate_batches([batch])


async def test_a_session_is_renewed_after_so_many_bytes_and_nobody_notices(url: str) -> None:
    sessions = set()
    # The Spark server then stores all data that is sent to it.
    with forced(Thresholds(local_relation_max_bytes=0)):
        async with Engine(url, EngineSettings(renew_after_bytes=1, parallelism=1)) as engine:
            for value in range(3):
                sessions.add((await engine._sessions.session()).session._spark.session_id)
                await one(engine, value)
    assert len(sessions) == 3


async def test_a_session_on_which_a_job_still_runs_is_renewed_when_that_has_ended(url: str, events: Events) -> None:
    with forced(Thresholds(local_relation_max_bytes=0)), anyio.fail_after(120):
        async with Engine(url, EngineSettings(renew_after_bytes=1, parallelism=1)) as engine:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(engine.evaluate, slow(30), label="slow"))
                await events.wait_for(lambda entry: entry["event"] == "dvu_job" and entry["labels"] == ["slow"])
                held = await engine._sessions.session()
                await one(engine, 1)
                assert (held.retired.is_set(), held.running_jobs) == (True, 1)
                tasks.cancel_scope.cancel()
            await one(engine, 2)
            assert await engine._sessions.session() is not held


async def test_a_session_that_the_server_has_ended_is_replaced(url: str, events: Events) -> None:
    async with Engine(url, EngineSettings(parallelism=1)) as engine:
        await one(engine, 1)
        held = engine._sessions._active
        assert held is not None
        session_id = held.session._spark.session_id
        await to_thread.run_sync(held.session._spark.client.release_session)
        await one(engine, 2)
        held = engine._sessions._active
        assert held is not None
        assert held.session._spark.session_id != session_id


async def test_without_spark_callers_are_told_and_can_leave(unused_port: int, events: Events) -> None:
    async with Engine(f"sc://localhost:{unused_port}") as engine:
        with pytest.raises(DvuError, match="not available") as caught:
            await engine.evaluate(small()[1], label="none")
        assert caught.value.code == "spark_down"
        assert engine.state.startswith("down: ")
        assert not engine.ready.is_set()
        with pytest.raises(DvuError, match="not available"):
            await engine.available()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await engine.evaluate(small()[1], label="none")


async def test_callers_of_a_stopped_engine_are_told(url: str) -> None:
    errors: list[str] = []

    async def wait() -> None:
        with pytest.raises(DvuError) as caught:
            await engine.evaluate(slow(30), label="stopped")
        errors.append(caught.value.code)

    async with anyio.create_task_group() as tasks, Engine(url, EngineSettings(parallelism=1)) as engine:
        await one(engine, 1)
        for _ in range(4):
            tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
    assert errors == ["stopped"] * 4
    with pytest.raises(DvuError, match="stopping"):
        await engine.evaluate(small()[1], label="late")


@pytest.mark.parametrize("remote", ["spark://localhost:7077", "http://localhost", "sc://", "sc://host/path", ""])
async def test_a_url_that_spark_does_not_know_is_a_setting_to_mend(remote: str) -> None:
    with pytest.raises(ConfigError):
        async with Engine(remote):
            pytest.fail("it started")
