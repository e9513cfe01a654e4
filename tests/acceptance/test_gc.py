"""`rebaser gc` as a user runs it, on an embedded Spark of its own."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from rebaser.embedded.priority import LOWEST, run_when_idle
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import command, environment, rebaser

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.spark,
    pytest.mark.usefixtures("topology"),
    pytest.mark.timeout(900),  # Spark starts, and stops with what other tests leave of the processors
]


async def test_a_run_is_told_as_json_and_is_in_the_log(
    nats_url: str, js: JetStream, subjects: Subjects, tmp_path: Path
) -> None:
    await open_blobs(None, js, subjects.blobs_bucket).put(b"garbage")
    place = ["--nats", nats_url, "--prefix", subjects.prefix]
    with anyio.fail_after(600):
        ended = await anyio.run_process(
            command("gc", *place, "--urgent", "--json"), env=environment(scratch=str(tmp_path))
        )
    told = json.loads(ended.stdout)
    assert (told["blobs"], told["candidates"], told["trashed"], told["graceSeconds"]) == (1, 1, 0, 86_400.0)
    logged = await rebaser("tail", *place, "--all", "--json", "--", "-", "gc")
    assert json.loads(logged.stdout)["kind"] == "gc"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this policy")
async def test_a_run_lets_servers_go_first(nats_url: str, subjects: Subjects, tmp_path: Path) -> None:
    """Spark uses half of the CPUs. Once it is up, the program and Spark run only on idle CPUs, and Spark's session has
    the lowest share. The test does not wait for the end of the run, which needs idle CPUs."""
    cpus, lengthened = len(os.sched_getaffinity(0)), lengthened_slice()
    place = ["--nats", nats_url, "--prefix", subjects.prefix]
    with anyio.fail_after(600):
        async with await anyio.open_process(command("gc", *place), env=environment(scratch=str(tmp_path))) as program:

            def policies() -> list[int]:
                return [os.sched_getscheduler(pid) for pid in (program.pid, *leaders(tmp_path))]

            try:
                while policies() != [os.SCHED_IDLE] * 2:
                    assert program.returncode is None, "it ended before it let others go first"
                    await anyio.sleep(0.05)
                (spark,) = leaders(tmp_path)
                assert len(os.sched_getaffinity(spark)) == (cpus + 1) // 2
                assert {slice_of(pid) for pid in (program.pid, spark)} == {lengthened}
                autogroup = Path(f"/proc/{spark}/autogroup")
                assert not autogroup.exists() or autogroup.read_text().endswith(f"nice {LOWEST}\n")  # noqa: ASYNC240
            finally:
                if program.returncode is None:
                    program.terminate()


def leaders(folder: Path) -> list[int]:
    """Return the processes that lead a session and have `folder` in their arguments."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # the process has ended
            if path.name.isdigit() and bytes(folder) in (path / "cmdline").read_bytes():
                found += [int(path.name)] if os.getsid(int(path.name)) == int(path.name) else []
    return found


def slice_of(pid: int) -> int | None:
    """Return the time slice of the process in nanoseconds; None if the kernel does not report it."""
    with contextlib.suppress(OSError):
        found = re.search(r"^se\.slice\s*:\s*(\d+)", Path(f"/proc/{pid}/sched").read_text(), re.MULTILINE)
        return int(found[1]) if found is not None else None
    return None


def lengthened_slice() -> int | None:
    """Return the time slice of a process after `run_when_idle`. Not every kernel or sandbox lets it have an effect."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            run_when_idle(process.pid)
            return slice_of(process.pid)
        finally:
            process.kill()
