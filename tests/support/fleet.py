"""A small installation of processes: nats-server and `rebaser serve`, with the calls that tests need."""

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from tests.support.commands import ROOT, environment
from tests.support.forked import fork

START_LIMIT = 240.0  # seconds until a start counts as failed; no measure of speed
NO_SPARK = "sc://127.0.0.1:1"  # a port without a Spark server: for tests of servers that derive nothing


class ServerProcess:
    """A process of `rebaser serve`. Tests wait for its log events, and never poll."""

    def __init__(self, process: anyio.abc.Process, name: str) -> None:
        self.process = process
        self.name = name
        self.events: list[dict[str, Any]] = []
        self._arrived = anyio.Event()

    async def read_log(self) -> None:
        """Collect the log events of the process until it ends."""
        assert self.process.stderr is not None
        rest = b""
        async for chunk in self.process.stderr:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._read_line(line)
        self._read_line(rest)

    def _read_line(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            if line.strip():
                print(f"{self.name}: {line.decode(errors='replace')}", file=sys.stderr)
            return
        self.events.append(event)
        if event.get("level") in ("error", "critical"):
            print(f"{self.name}: {event}", file=sys.stderr)
        arrived, self._arrived = self._arrived, anyio.Event()
        arrived.set()

    async def wait_for(self, name: str, limit: float = START_LIMIT, **fields: Any) -> dict[str, Any]:
        """Return the first event `name` with these fields, whether it was logged before this call or comes later."""
        seen = 0
        with anyio.fail_after(limit):
            while True:
                while seen < len(self.events):
                    event = self.events[seen]
                    seen += 1
                    if event.get("event") == name and fields.items() <= event.items():
                        return event
                await self._arrived.wait()

    async def heard(self) -> None:
        """Return when one more event was logged."""
        await self._arrived.wait()

    def count(self, name: str) -> int:
        return sum(1 for event in self.events if event.get("event") == name)

    async def kill(self) -> None:
        """Send SIGKILL, and return when the process has ended."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(START_LIMIT):
            return await self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def launched(
    url: str, name: str, *, module: str = "rebaser", python: str | None = None, **settings: object
) -> AsyncIterator[ServerProcess]:
    """Run a server, which may not be ready yet, and stop it with SIGTERM at the end. `module` is a variant of
    `rebaser`. With `python`, the server starts as a user starts it; otherwise, its process is forked."""
    given = {"spark": "local[1]", "log_format": "json", "server_id": name, "nats_url": url} | settings
    env = environment(**{key: str(one) for key, one in given.items()})
    if python is None:
        if "test_thresholds" in given:
            raise ValueError("thresholds are read at the start of Python: pass python=sys.executable, too")
        started: anyio.abc.Process = await fork(module, "serve", environment=env)
    else:
        started = await anyio.open_process([python, "-m", module, "serve"], stdout=None, cwd=ROOT, env=env)
    async with started as process, anyio.create_task_group() as group:
        running = ServerProcess(process, name)
        group.start_soon(running.read_log)
        try:
            yield running
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    running.resume()
                    process.terminate()
                    with anyio.move_on_after(60):
                        await process.wait()
                    if process.returncode is None:
                        process.kill()
                await process.wait()


@asynccontextmanager
async def servers(url: str, *names: str, warm: bool = True, **settings: Any) -> AsyncIterator[list[ServerProcess]]:
    """Start servers at the same time, and yield when all are ready; with `warm`, ready to compute derived values,
    too."""
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(launched(url, name, **settings)) for name in names]
        for one in running:
            await one.wait_for("server_ready")
        for one in running if warm else ():
            await one.wait_for("dvu_ready")
        yield running
