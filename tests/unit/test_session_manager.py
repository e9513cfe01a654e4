"""Tests when code is compiled beside a server, and what happens to sessions that cannot be used."""

import subprocess
import sys
import threading
from typing import Any, cast

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from rebaser.dvu.compiled import loader
from rebaser.dvu.planning import loop_loader
from rebaser.dvu.spark import session_manager
from rebaser.dvu.spark.session import SessionError
from rebaser.dvu.spark.session_manager import EngineSettings, SessionManager
from rebaser.telemetry.log_events import count
from rebaser_core import thresholds
from tests.conftest import Events
from tests.support.figures import figures, moved

pytestmark = pytest.mark.anyio


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    started: list[list[str]] = []

    async def run_process(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        started.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(anyio, "run_process", run_process)
    return started


async def test_it_is_compiled_once_spark_is_up_and_only_if_nobody_has(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "is_cached", lambda: True)
    keeper = SessionManager("local[*]", EngineSettings(), lambda _: None)
    keeper.ready.set()
    await keeper.compile()
    monkeypatch.setattr(loader, "is_cached", lambda: False)
    await SessionManager("sc://elsewhere:1", EngineSettings(), lambda _: None).compile()
    keeper = SessionManager("local[*]", EngineSettings(), lambda _: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.compile)
        await anyio.sleep(0.01)
        assert commands == []
        keeper.ready.set()
    assert commands == [[sys.executable, "-m", "rebaser.dvu.planning.warm_up"]]


@pytest.mark.parametrize("asked", [False, True])
async def test_planning_waits_for_compiled_code_only_once_spark_is_up_unless_there_is_much(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    loaded: list[bool] = []
    compiled_loops, limits = object(), thresholds.now

    def load() -> object:
        loaded.append(keeper.ready.is_set())
        return compiled_loops

    monkeypatch.setattr(loop_loader, "load", load)
    monkeypatch.setattr(loader, "is_cached", lambda: True)
    keeper = SessionManager("local[*]", EngineSettings(), lambda _: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.compile)
        await anyio.sleep(0.01)
        size = limits.interpreted_max_during_start if asked else limits.interpreted_max
        assert loop_loader.loops_for(size, limits.interpreted_max) is not compiled_loops
        assert loaded == []
        assert loop_loader.loops_for(limits.interpreted_max_during_start + 1, limits.interpreted_max) is compiled_loops
        keeper.ready.set()
    assert loaded == [False] + [True] * asked
    assert loop_loader.loops_for(limits.interpreted_max + 1, limits.interpreted_max) is compiled_loops


class Broken:
    """A session that cannot be opened."""

    def __init__(self) -> None:
        self.is_cut = False

    def open(self) -> None:
        raise SessionError("no")

    def disconnect(self) -> None:
        self.is_cut = True


async def test_a_session_that_cannot_be_opened_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, each attempt would leave a connection for as long as Spark is unavailable."""
    session = Broken()
    monkeypatch.setattr(session_manager, "Session", lambda *_, **__: session)
    with pytest.raises(SessionError):
        await SessionManager("sc://elsewhere:1", EngineSettings(), lambda _: None)._open()
    assert session.is_cut


class Cut:
    """A session that was open. `disconnect` must be called in a thread, because it blocks."""

    def __init__(self) -> None:
        self.is_cut = anyio.Event()
        self.is_closed = False

    def disconnect(self) -> None:
        anyio.from_thread.run_sync(self.is_cut.set)

    def close(self) -> None:
        self.is_closed = True


async def test_the_connection_of_a_session_that_is_lost_is_cut_under_its_jobs(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the jobs would wait, and no other session would be opened in the meantime."""
    sessions: list[Cut] = []

    async def open_(_: SessionManager) -> Cut:
        sessions.append(Cut())
        return sessions[-1]

    monkeypatch.setattr(SessionManager, "_open", open_)
    keeper = SessionManager("sc://elsewhere:1", EngineSettings(), lambda _: None)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.run)
            active = await keeper.session()
            active.running_jobs = 1
            active.mark_lost()
            await sessions[0].is_cut.wait()
            active.running_jobs = 0
            active.job_ended.set()
            active, lost = await keeper.session(), active
            assert active is not lost
            active.retired.set()
            while len(sessions) < 3:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.01)
            await keeper.session()
            tasks.cancel_scope.cancel()
    before = figures()
    for event in events.named("spark_ready"):
        count(event, "info")
    told = moved(before)
    assert {told["spark_sessions_total", why] for why in ("first", "lost", "renewed")} == {1}


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
async def test_a_session_without_jobs_that_does_not_answer_is_replaced(
    events: Events, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Otherwise, the next update would be the first to notice that Spark has ended."""
    monkeypatch.setattr(session_manager, "_CHECK", 0.001)
    sessions: list[Cut] = []

    class Checked(Cut):
        def __init__(self) -> None:
            super().__init__()
            self.answers = threading.Event()
            self.checks = 0

        def disconnect(self) -> None:
            super().disconnect()
            self.answers.set()

        def check(self) -> None:
            self.checks += 1
            if self is sessions[0] and self.checks == 3:
                if hangs:
                    self.answers.wait()
                raise SessionError("no")

    async def open_(_: SessionManager) -> Checked:
        # Of a session that answers, an answer would often be late after so short a time.
        monkeypatch.setattr(session_manager, "_CHECK_TIMEOUT", 0.001 if hangs and not sessions else 60.0)
        sessions.append(Checked())
        return cast("Checked", sessions[-1])

    monkeypatch.setattr(SessionManager, "_open", open_)
    keeper = SessionManager("sc://elsewhere:1", EngineSettings(), lambda _: None)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.run)
            while len(sessions) < 2 or cast("Any", sessions[1]).checks < 2:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.001)
            active = await keeper.session()
            assert active.session is cast("Any", sessions[1])
            active.running_jobs = 1  # its end would tell
            before = -1
            while (now := cast("Any", sessions[1]).checks) != before:
                before = now
                await anyio.sleep(0.05)  # one check may have begun before; the next ones would come in that time
            active.running_jobs = 0
            tasks.cancel_scope.cancel()
    assert len(events.named("spark_lost")) == 1
    assert len(sessions) == 2


async def test_an_outage_after_another_is_waited_for_as_if_it_were_the_first(
    events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_manager, "_RETRY", 0.1)
    fails = [True, True, False, True, False]

    async def open_(_: SessionManager) -> Cut:
        if fails.pop(0):
            raise SessionError("no")
        return Cut()

    monkeypatch.setattr(SessionManager, "_open", open_)
    keeper = SessionManager("sc://elsewhere:1", EngineSettings(), lambda _: None)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.run)
            (await keeper.session()).mark_lost()
            while fails:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert [entry["retry_seconds"] for entry in events.named("spark_down")] == pytest.approx(
        [0.1, 0.2, 0.1], rel=0.6
    )  # jitter


async def test_a_session_that_is_replaced_is_closed_when_its_jobs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, the Spark server keeps everything that it was sent."""
    sessions: list[Cut] = []

    async def open_(_: SessionManager) -> Cut:
        sessions.append(Cut())
        return sessions[-1]

    monkeypatch.setattr(SessionManager, "_open", open_)
    keeper = SessionManager("sc://elsewhere:1", EngineSettings(), lambda _: None)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.run)
            active = await keeper.session()
            active.running_jobs = 1
            active.retired.set()
            await anyio.sleep(0.05)  # long enough for a thread to close it
            assert not keeper._available.is_set(), "whoever waits for a session would turn in a circle"
            assert (len(sessions), sessions[0].is_closed, sessions[0].is_cut.is_set()) == (1, False, False)
            active.running_jobs = 0
            active.job_ended.set()
            assert await keeper.session() is not active
            assert (sessions[0].is_closed, sessions[0].is_cut.is_set()) == (True, True)
            tasks.cancel_scope.cancel()
        assert (len(sessions), sessions[1].is_closed) == (2, False)
        await keeper.close()
    assert sessions[1].is_closed


async def test_the_embedded_spark_ends_with_its_keeper() -> None:
    class Running:
        is_stopped = False

        def stop(self) -> None:
            self.is_stopped = True

    jvm, keeper = Running(), SessionManager("local[*]", EngineSettings(), lambda _: None)
    keeper._jvm = cast("Any", jvm)
    await keeper.close()
    assert (jvm.is_stopped, keeper.state) == (True, "stopped")


async def test_what_a_dead_jvm_has_left_is_removed_before_the_next_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be gigabytes, and this process holds the lock of the folder, so no other server removes them."""
    did: list[str] = []

    class Dead:
        alive = False

        def start(self) -> None:
            did.append("start")
            raise SessionError("no")

        def stop(self) -> None:
            did.append("stop")

    keeper = SessionManager("local[*]", EngineSettings(), lambda _: None)
    monkeypatch.setattr(keeper, "_next_jvm", Dead)
    for _ in range(2):
        with pytest.raises(SessionError):
            await keeper._open()
    assert did == ["start", "stop", "start"]


async def test_who_waits_for_a_spark_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_(_: SessionManager) -> Cut:
        raise SessionError("nobody is there")

    reasons: list[str] = []
    told = anyio.Event()

    def down(reason: str) -> None:
        reasons.append(reason)
        told.set()

    monkeypatch.setattr(SessionManager, "_open", open_)
    keeper = SessionManager("sc://elsewhere:1", EngineSettings(), down)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keeper.run)
            await told.wait()
            tasks.cancel_scope.cancel()
    assert (reasons, keeper.state) == (["nobody is there"], "down: nobody is there")
