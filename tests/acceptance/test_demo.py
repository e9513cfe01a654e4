"""`rebaser demo` and `rebaser dev` as a newcomer runs them. Afterwards, no process is left."""

import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support.commands import ROOT, command, environment, rebaser_alone, rebaser_json

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.timeout(900)]


def running_under(folder: Path) -> list[str]:
    """Return the command lines of live processes that contain `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # the process has ended meanwhile
            if str(folder) in line:
                found.append(line)
    return found


def descendants(pid: int) -> set[int]:
    """Return the processes that `pid` has started, and their descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def gone(running: Callable[[], Sequence[object]]) -> None:
    """Return when no process is `running`. A child that was killed may end a moment after its parent."""
    with anyio.fail_after(60):
        while running():  # noqa: ASYNC110 - these are not all children of this process
            await anyio.sleep(0.05)


@asynccontextmanager
async def dev(data: Path, *more: str) -> AsyncIterator[tuple[anyio.abc.Process, BufferedByteReceiveStream]]:
    async with await anyio.open_process(
        command("dev", "--port", "0", "--data", str(data), *more), cwd=ROOT, env=environment(), stderr=None
    ) as process:
        assert process.stdout is not None
        yield process, BufferedByteReceiveStream(process.stdout)


async def line_of(output: BufferedByteReceiveStream) -> str:
    with anyio.fail_after(400):
        return (await output.receive_until(b"\n", 1000)).decode()


async def test_the_demo_is_right_plain_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = await rebaser_alone("demo", "--data", str(tmp_path / "kept"))
    assert (done.returncode, done.stderr) == (0, ""), done
    assert re.search(r"All [\d,]+ values equal those computed directly from importlib.metadata", done.stdout)
    assert "error cycle: these depend on each other" in done.stdout
    assert "\x1b" not in done.stdout
    for name in ("branch", "diff --derived", "rebase", "conflicts", "apply", "undo"):
        assert f"\n     rebaser {name} " in done.stdout
    assert done.stdout.count("\n") < 60
    await gone(lambda: running_under(tmp_path))


@pytest.mark.long
async def test_what_the_demo_made_can_be_looked_at_afterwards(tmp_path: Path) -> None:
    data = tmp_path / "kept"
    done = await rebaser_alone("demo", "--data", str(data))
    found = re.search(r"rebaser get (demo run-\S+) (\S+)", done.stdout)
    assert found is not None
    async with dev(data) as (process, output):
        url = (await line_of(output)).removeprefix("ready nats=")
        [size] = await rebaser_json("get", *found[1].split(), found[2], nats_url=url)
        assert size["state"] == "ok"
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(120):
            assert await process.wait() == 0


async def test_dev_says_when_it_is_ready_and_warm_and_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    async with dev(tmp_path / "data") as (process, output):
        ready = await line_of(output)
        assert re.fullmatch(r"ready nats=nats://127\.0\.0\.1:\d+", ready)
        assert re.fullmatch(r"console http://127\.0\.0\.1:\d+/", await line_of(output))
        assert await line_of(output) == "warm spark=local[*]"
        children = descendants(process.pid)
        assert len(children) >= 2  # nats-server and the JVM
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(120):
            assert await process.wait() == 130
        await gone(lambda: [pid for pid in children if alive(pid)])


async def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = await rebaser_alone("dev", "--port", str(port), "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {port} " in done.stderr
    assert "--port" in done.stderr


async def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    settings = environment() | {"PATH": str(empty)}
    settings.pop("JAVA_HOME", None)
    with anyio.fail_after(120):
        done = await anyio.run_process(
            command("demo", "--data", str(tmp_path / "data")), check=False, cwd=ROOT, env=settings
        )
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"install a Java runtime, 17 or newer" in done.stderr
    await gone(lambda: running_under(tmp_path))


async def test_a_dev_that_is_killed_takes_its_children_along(tmp_path: Path) -> None:
    async with dev(tmp_path / "data") as (process, output):
        await line_of(output)
        await line_of(output)
        ends = [os.pidfd_open(pid) for pid in descendants(process.pid)]
        process.send_signal(signal.SIGKILL)
        with anyio.fail_after(120):
            await process.wait()
            for end in ends:
                await anyio.wait_readable(end)  # readable as soon as the process has ended
                os.close(end)
        assert len(ends) >= 2  # nats-server and the JVM
