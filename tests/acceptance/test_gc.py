"""`rebaser gc` as a user runs it, on an embedded Spark of its own."""

import contextlib
import json
import os
import sys
from pathlib import Path

import anyio
import pytest

from rebaser.gc.spark_tables import NICENESS
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.spark,
    pytest.mark.usefixtures("topology"),
    pytest.mark.timeout(900),  # its Spark takes only what other tests leave of the processors
]


async def test_a_run_is_told_as_json_and_is_in_the_log(nats_url: str, js: JetStream, subjects: Subjects) -> None:
    await open_blobs(None, js, subjects.blobs_bucket).put(b"garbage")
    place = ["--nats", nats_url, "--prefix", subjects.prefix]

    async def run(*arguments: str) -> str:
        done = await anyio.run_process([sys.executable, "-m", "rebaser", *arguments], check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    told = json.loads(await run("gc", *place, "--json"))
    assert (told["blobs"], told["candidates"], told["trashed"], told["graceSeconds"]) == (1, 1, 0, 86_400.0)
    logged = await run("tail", *place, "--all", "--json", "--", "-", "gc")
    assert json.loads(logged)["kind"] == "gc"


async def test_servers_on_the_same_machine_take_precedence(
    nats_url: str, subjects: Subjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark uses half of the CPUs. Once it is up, the program, Spark and Spark's session have a low priority."""
    monkeypatch.setenv("REBASER_SCRATCH", str(tmp_path))
    own, cpus = os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0))
    expected = min(own + NICENESS, 19)
    command = [sys.executable, "-m", "rebaser", "gc", "--nats", nats_url, "--prefix", subjects.prefix]
    with anyio.fail_after(600):
        async with await anyio.open_process(command) as program:

            def priorities() -> list[int]:
                return [os.getpriority(os.PRIO_PROCESS, pid) for pid in (program.pid, *leaders(tmp_path))]

            try:
                while priorities() != [expected] * 2:  # noqa: ASYNC110 - nothing announces it
                    await anyio.sleep(0.05)
                (spark,) = leaders(tmp_path)
                assert len(os.sched_getaffinity(spark)) == (cpus + 1) // 2
                autogroup = Path(f"/proc/{spark}/autogroup")
                while autogroup.exists() and not autogroup.read_text().endswith(f"nice {expected}\n"):  # noqa: ASYNC110, ASYNC240
                    await anyio.sleep(0.05)
            finally:
                program.terminate()
                await program.wait()


def leaders(folder: Path) -> list[int]:
    """Return the processes that lead a session and have `folder` in their arguments."""
    found: list[int] = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # the process has ended
            if path.name.isdigit() and bytes(folder) in (path / "cmdline").read_bytes():
                found += [int(path.name)] if os.getsid(int(path.name)) == int(path.name) else []
    return found
