"""`rebaser gc` as a user runs it, on an embedded Spark of its own."""

import contextlib
import json
import os
import re
import subprocess
from pathlib import Path

import anyio
import pytest

from rebaser.embedded.priority import shorten_slices
from rebaser.gc.spark_tables import NICENESS
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from tests.support.commands import command, environment, rebaser

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.spark,
    pytest.mark.usefixtures("topology"),
    pytest.mark.timeout(900),  # its Spark takes only what other tests leave of the processors
]


async def test_a_run_lets_servers_go_first_is_told_as_json_and_is_in_the_log(
    nats_url: str, js: JetStream, subjects: Subjects, tmp_path: Path
) -> None:
    """Spark uses half of the CPUs. Once it is up, the program, Spark and Spark's session have a low priority, and short
    time slices."""
    await open_blobs(None, js, subjects.blobs_bucket).put(b"garbage")
    place = ["--nats", nats_url, "--prefix", subjects.prefix]
    own, cpus = os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0))
    expected, shortened = min(own + NICENESS, 19), shortened_slice()
    with anyio.fail_after(600):
        async with await anyio.open_process(
            command("gc", *place, "--json"), env=environment(scratch=str(tmp_path))
        ) as program:

            def priorities() -> list[int]:
                return [os.getpriority(os.PRIO_PROCESS, pid) for pid in (program.pid, *leaders(tmp_path))]

            try:
                while priorities() != [expected] * 2:
                    assert program.returncode is None, "it ended without a low priority"
                    await anyio.sleep(0.05)
                (spark,) = leaders(tmp_path)
                assert len(os.sched_getaffinity(spark)) == (cpus + 1) // 2
                autogroup = Path(f"/proc/{spark}/autogroup")
                while autogroup.exists() and not autogroup.read_text().endswith(f"nice {expected}\n"):  # noqa: ASYNC240
                    assert program.returncode is None, "its session kept its priority"
                    await anyio.sleep(0.05)
                while {slice_of(pid) for pid in (program.pid, spark)} != {shortened}:
                    assert program.returncode is None, "it kept its time slices"
                    await anyio.sleep(0.05)
                assert program.stdout is not None
                told = json.loads(b"".join([part async for part in program.stdout]))
                assert await program.wait() == 0
            finally:
                if program.returncode is None:
                    program.terminate()
    assert (told["blobs"], told["candidates"], told["trashed"], told["graceSeconds"]) == (1, 1, 0, 86_400.0)
    logged = await rebaser("tail", *place, "--all", "--json", "--", "-", "gc")
    assert json.loads(logged.stdout)["kind"] == "gc"


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


def shortened_slice() -> int | None:
    """Return the time slice of a process after `shorten_slices`. Not every kernel or sandbox lets it have an effect."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            shorten_slices(process.pid)
            return slice_of(process.pid)
        finally:
            process.kill()
