"""`rebaser console` as a process: what it prints, serves, refuses, and how it ends."""

import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from rebaser.testing import LocalRebaser
from rebaser_client import RebaserClient, Set
from tests.support.commands import ROOT, command, environment, rebaser
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def started(
    nats_url: str, *options: str, stderr: int | None = None
) -> AsyncIterator[tuple[anyio.abc.Process, WebConsole]]:
    arguments = command("console", "--http", ":0", "--nats", nats_url, *options)
    async with await anyio.open_process(arguments, cwd=ROOT, env=environment(), stderr=stderr) as process:
        assert process.stdout is not None
        with anyio.fail_after(120):
            line = (await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 1000)).decode()
        assert line.startswith("console http://127.0.0.1:")
        yield process, WebConsole(int(line.rstrip("/").rpartition(":")[2]))
        if process.returncode is None:
            process.kill()


async def test_it_serves_until_ctrl_c(installation: LocalRebaser) -> None:
    async with started(installation.url) as (process, console):
        overview = await console.get("/overview")
        assert (overview["problem"], overview["actions"]) == ("", False)
        async with console.live("/overview") as live:
            await live.next()
            process.send_signal(signal.SIGINT)
            with anyio.fail_after(60):
                assert await process.wait() == 130, "an open stream does not hold it up"


async def test_actions_are_an_option(installation: LocalRebaser) -> None:
    async with started(installation.url, "--actions") as (process, console):
        assert (await console.get("/overview"))["actions"] is True
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(60):
            assert await process.wait() == 0


async def test_an_action_is_in_the_log_without_an_option(installation: LocalRebaser) -> None:
    async with started(installation.url, "--actions", stderr=subprocess.PIPE) as (process, console):
        await console.act("/change-sets/no%20name/main/close", {"author": "ann"}, 400)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        with anyio.fail_after(60):
            log = b"".join([chunk async for chunk in process.stderr]).decode()
    [event] = [json.loads(line) for line in log.splitlines() if "console_action" in line]
    assert (event["author"], event["path"]) == ("ann", "/api/v1/change-sets/no name/main/close")


async def test_an_address_that_others_reach_is_refused_in_one_line(tmp_path: Path) -> None:
    done = await rebaser("console", "--http", "0.0.0.0:0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "--insecure" in done.stderr
    done = await rebaser("console", "--http", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")


async def test_pages_of_updates_link_to_the_spark_ui(installation: LocalRebaser) -> None:
    async with started(installation.url, "--spark-ui-url", "http://spark:4040/") as (_, console):
        assert (await console.get("/dvu"))["sparkUi"] == "http://spark:4040/"
    done = await rebaser("console", "--spark-ui-url", "javascript:alert(1)")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--spark-ui-url has to begin with http" in done.stderr


async def test_commits_link_to_their_trace(installation: LocalRebaser, client: RebaserClient, ws: str) -> None:
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1)])
    async with started(installation.url, "--trace-url", "http://traces/{trace_id}") as (_, console):
        assert (await console.get(f"/change-sets/{ws}/main/commits"))["traceUrl"] == "http://traces/{trace_id}"
    for bad in ("javascript:alert('{trace_id}')", "http://traces/"):
        done = await rebaser("console", "--trace-url", bad)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--trace-url has to begin with http" in done.stderr


async def test_a_name_is_accepted_if_it_was_given(installation: LocalRebaser) -> None:
    async with started(installation.url, "--allow-host", "console.example.com") as (_, console):
        host = {"host": "console.example.com"}
        assert (await console.ask("/", headers=host)).status == 200
        assert (await console.ask("/", headers={"host": "other.example.com"})).status == 421


async def test_a_name_that_cannot_be_one_is_refused() -> None:
    done = await rebaser("console", "--http", ":0", "--allow-host", "[x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--allow-host: '[x' is not NAME or NAME:PORT" in done.stderr
