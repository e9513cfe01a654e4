"""The probes of a server process during faults of NATS, from start to end."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rebaser.embedded.nats import embedded_nats
from rebaser.serving import MAX_FILES
from tests.support.commands import rebaser
from tests.support.fleet import NO_SPARK, launched
from tests.support.http import ask, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def max_files() -> Iterator[int]:
    """How many open files a server should allow itself, which starts with half of that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted // 2, hard))
    yield wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_probes_tell_nats_that_is_missing_away_and_back(tmp_path: Path, unused_port: int, max_files: int) -> None:
    """The server waits for NATS, works without Spark, is live without NATS and ready again with it, and ends on
    SIGTERM."""
    url = f"nats://127.0.0.1:{unused_port}"
    given: dict[str, Any] = {"spark": NO_SPARK, "http": ":0", "wait_for_nats": 600, "ping_interval": 0.5}
    async with launched(url, "one", python=sys.executable, **given) as server:
        port = (await server.wait_for("http_listening"))["port"]
        await server.wait_for("nats_awaited")
        assert (await ask(port, "/livez")).status == 200
        answer = await ask(port, "/readyz")
        assert (answer.status, answer.body.split(":")[0]) == (503, "stage")
        assert "nats: there has been no connection yet: no connection to NATS at" in answer.body
        async with embedded_nats(tmp_path / "nats", unused_port) as nats:
            await server.wait_for("server_ready")
            if sys.platform == "linux":  # elsewhere, a scrape does not show it
                assert f"\nprocess_max_fds {float(max_files)}\n" in (await ask(port, "/metrics")).body
            await until(port, "/readyz", 200)
            await until(port, "/readyz?require=spark", 503, "spark: ")
            spark = (await ask(port, "/readyz?verbose")).json()["checks"]["spark"]
            assert spark["text"].split(":")[0] in ("starting", "down")
            assert spark["ok"]
            os.kill(nats.pid, signal.SIGSTOP)
            try:
                await until(port, "/readyz", 503, "nats: no connection for")
                await server.wait_for("nats_reconnect_failed")
                await until(port, "/readyz", 503, ": no connection to NATS at")
                assert (await ask(port, "/livez")).status == 200
            finally:
                os.kill(nats.pid, signal.SIGCONT)
            await until(port, "/readyz", 200)
            assert await server.terminate() == 0
    with pytest.raises(OSError, match="connect"):
        await ask(port, "/livez")


async def test_a_server_without_nats_gives_up_in_time_and_says_why(unused_port: int) -> None:
    done = await rebaser("serve", "--wait-for-nats", "2", nats_url=f"nats://127.0.0.1:{unused_port}", spark=NO_SPARK)
    assert done.returncode == 1
    assert "no connection to NATS" in done.stderr.splitlines()[-1]
    assert '"nats_awaited"' in done.stderr
