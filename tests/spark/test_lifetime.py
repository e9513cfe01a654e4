"""The embedded JVM: it is restarted when it dies, it ends with its program however that ends, and it prints nothing."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
import structlog.testing
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from rebaser.cli.spark_prestart import prestarted_spark
from rebaser.dvu.spark.engine import Engine, EngineSettings
from rebaser.embedded.spark import Jvm, _lock, _remove_abandoned, check_java
from rebaser.settings import load_settings
from rebaser_core.errors import ConfigError, DvuError
from tests.support.draws import drawing
from tests.support.processes import ended
from tests.support.updates_on_spark import one

PROGRAM = r"""
import sys
from pathlib import Path
import anyio
from rebaser.dvu.spark.engine import Engine, EngineSettings

async def main():
    async with Engine("local[1]", EngineSettings(scratch=Path(sys.argv[1]), parallelism=1)) as engine:
        await engine.ready.wait()
        print(f"\npid={engine._sessions._jvm._process.pid}", flush=True)
        await anyio.sleep_forever()

try:
    anyio.run(main)
except KeyboardInterrupt:
    pass
"""


KILLED = drawing("the end of a Spark that starts").choice((False, True))

AHEAD = r"""
import sys
import time
from pathlib import Path
from rebaser.cli.spark_prestart import prestarted_spark
from rebaser.settings import load_settings

with prestarted_spark(load_settings(spark="local[1]", scratch=Path(sys.argv[1]))) as jvm:
    while not jvm.alive:
        time.sleep(0.01)
    print(jvm._process.pid, flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose name is short enough for sockets, so that all files of a Spark are in it, even after a kill."""
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.anyio
@pytest.mark.spark
@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
async def test_the_jvm_ends_with_its_program_and_shares_nothing_with_another(
    engine: Engine, tmp_path: Path, short_folder: Path, end: signal.Signals
) -> None:
    """The JVM runs beside the shared engine, prints nothing to stderr, and leaves no file if it could clean up."""
    scratch = short_folder
    command = [sys.executable, "-c", PROGRAM, str(scratch)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with anyio.fail_after(240):
        async with await anyio.open_process(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment) as program:
            jvm = await _jvm(program)
            await one(engine, 1)
            program.send_signal(end)
            await program.wait()
            await ended(jvm)
            assert program.stderr is not None
            said = b"".join([chunk async for chunk in program.stderr])
    assert said == b""
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - not blocking for long
    if end is signal.SIGINT:
        assert os.listdir(scratch) == []  # noqa: PTH208
    else:
        _remove_abandoned(scratch)  # as the next one does at its start
        assert os.listdir(scratch) == []  # noqa: PTH208


async def _jvm(program: Process) -> int:
    """Return the process id that the program prints once its engine is ready."""
    assert program.stdout is not None
    lines = BufferedByteReceiveStream(program.stdout)
    while not (line := await lines.receive_until(b"\n", 10_000)).startswith(b"pid="):
        pass
    return int(line.removeprefix(b"pid="))


@pytest.mark.anyio
@pytest.mark.spark
async def test_an_engine_that_is_left_while_it_starts_leaves_nothing(short_folder: Path) -> None:
    with structlog.testing.capture_logs() as events:
        async with Engine("local[1]", EngineSettings(scratch=short_folder)) as engine:
            while engine._sessions._jvm is None or not engine._sessions._jvm.alive:
                await anyio.lowlevel.checkpoint()
    assert events == []
    assert engine.state == "stopped"
    assert not engine.ready.is_set()
    assert not engine._sessions._jvm.alive
    assert os.listdir(short_folder) == []  # type: ignore[unreachable] # noqa: PTH208


@pytest.mark.long  # half a minute, and the chaos tests kill Spark, too
@pytest.mark.anyio
@pytest.mark.spark
async def test_a_jvm_that_dies_is_started_again_under_its_callers(engine: Engine, jvm_pid: int) -> None:
    async with anyio.create_task_group() as tasks:
        os.kill(jvm_pid, signal.SIGKILL)
        for value in range(3):
            tasks.start_soon(one, engine, value)
    assert engine.state == "ready"


def test_a_jvm_knows_how_many_tasks_it_runs_at_once() -> None:
    found = [Jvm(master, memory="1g", scratch=None).task_slots for master in ("local", "local[2]", "local[*]")]
    assert found == [1, 2, None]


@pytest.mark.spark
@pytest.mark.anyio
@pytest.mark.parametrize(
    "killed", [pytest.param(one, marks=[] if one == KILLED else pytest.mark.long) for one in (False, True)]
)
async def test_one_that_is_stopped_while_it_starts_says_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path, killed: bool
) -> None:
    with prestarted_spark(load_settings(spark="local[1]", scratch=tmp_path)) as jvm, anyio.fail_after(240):
        while not list(tmp_path.rglob("blockmgr-*")):  # noqa: ASYNC110, ASYNC240 - Java is amid it then
            await anyio.sleep(0.01)
        assert jvm is not None
        if killed:
            jvm.kill()
    assert (capfd.readouterr(), caplog.records) == (("", ""), [])


@pytest.mark.spark
@pytest.mark.parametrize("seconds", [60, 0])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_are_loaded_or_all_ends_leaves_nothing(
    short_folder: Path, end: signal.Signals, seconds: int
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", AHEAD, str(short_folder), str(seconds)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        java = int(program.stdout.readline())
        program.send_signal(end)
        _, said = program.communicate(timeout=240)
    assert (program.returncode, said) == (128 + end, b"")
    assert list(short_folder.iterdir()) == []
    assert not Path(f"/proc/{java}").exists()


@pytest.mark.spark
@pytest.mark.parametrize("begun", [False, True])
def test_a_jvm_that_cannot_start_tells_why(tmp_path: Path, begun: bool) -> None:
    jvm = Jvm("local[1]", memory="1x", scratch=tmp_path)
    if begun:
        jvm.start_in_background()
    with pytest.raises(DvuError, match=r"does not start: .*1x"):
        jvm.start()
    jvm.stop()
    assert not list(tmp_path.iterdir())


@pytest.mark.spark
def test_a_jvm_that_something_kills_while_it_starts_is_not_blamed_on_its_warnings(tmp_path: Path) -> None:
    """For instance, the kernel kills it because memory is short."""
    jvm = Jvm("local[1]", memory="512m", scratch=tmp_path)
    jvm.start_in_background()
    while (java := jvm._process) is None:
        time.sleep(0.001)
    java.kill()
    with pytest.raises(DvuError, match="does not start: something killed Java"):
        jvm.start()
    jvm.stop()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("end", [Jvm.kill, Jvm.stop])
def test_a_jvm_that_was_ended_does_not_start(tmp_path: Path, end: Callable[[Jvm], None], begun: bool) -> None:
    jvm = Jvm("local[1]", memory="1g", scratch=tmp_path)
    end(jvm)
    try:
        if begun:
            jvm.start_in_background()
        with pytest.raises(DvuError, match="stopped while it started"):
            jvm.start()
    finally:
        jvm.stop()


def test_what_killed_servers_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    names = "of one killed", "in use", "just made", "link"
    killed, used, new, link = (tmp_path / f"rebaser-spark-{name}" for name in names)
    for folder in (killed, used, new):
        (folder / "structures").mkdir(parents=True)
        (folder / "structures" / "large").touch()
    link.symlink_to(tmp_path / "rebaser-spark-of one killed")
    os.close(_lock(killed))
    held = _lock(used)
    jvm = Jvm("local[1]", memory="1g", scratch=tmp_path)
    jvm.kill()
    with pytest.raises(DvuError, match="stopped while it started"):
        jvm.start()
    jvm.stop()
    os.close(held)
    assert {path.name for path in tmp_path.iterdir()} == {used.name, new.name, link.name}


FakeJava = Callable[[str], Path]


@pytest.fixture
def fake_java(tmp_path: Path) -> FakeJava:
    """Return a function that makes a program `java` that answers as told, and returns the folder above its `bin`."""

    def make(body: str) -> Path:
        program = tmp_path / "bin" / "java"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        return tmp_path

    return make


def test_a_java_that_is_new_enough_will_do(fake_java: FakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java("""echo 'openjdk version "21.0.1" 2023-10-17' >&2""")))
    check_java()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("""echo 'java version "1.8.0_392"' >&2""", "Java 17 or newer, and JAVA_HOME=.* has 1:"),
        ("""echo 'openjdk version "11.0.2" 2019-01-15' >&2""", "Java 17 or newer, and JAVA_HOME=.* has 11:"),
        ("exit 3", "has an unknown version"),
    ],
)
def test_an_old_java_is_a_setting_to_mend(
    fake_java: FakeJava, monkeypatch: pytest.MonkeyPatch, body: str, text: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(body)))
    with pytest.raises(ConfigError, match=text) as caught:
        check_java()
    assert "\n" not in caught.value.message
    assert "install a Java runtime" in caught.value.message


@pytest.mark.parametrize("variable", ["JAVA_HOME", "PATH"])
def test_no_java_is_a_setting_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ConfigError, match="needs Java, and there is none in") as caught:
        check_java()
    assert "\n" not in caught.value.message


@pytest.mark.anyio
async def test_an_engine_without_java_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="needs Java"):
        async with Engine():
            pytest.fail("it started")
