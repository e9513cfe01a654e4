"""A small installation made of real processes: nats-server, `rebaser serve` daemons, and what tests want of them."""

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from tests.support.commands import ROOT, environment

START_LIMIT = 120.0  # seconds until a start counts as failed; never a measure of speed
NO_SPARK = "sc://127.0.0.1:1"  # nobody is there: for servers whose tests derive nothing


class ServerProcess:
    """One `rebaser serve`. Waits for its log events; nothing here polls."""

    def __init__(self, process: anyio.abc.Process, name: str) -> None:
        self.process = process
        self.name = name
        self.events: list[dict[str, Any]] = []
        self._arrived = anyio.Event()

    async def read_log(self) -> None:
        """Collect its events until it ends."""
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
        """The first event `name` with these fields; one that came already counts."""
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
        """Return when one more event came."""
        await self._arrived.wait()

    def count(self, name: str) -> int:
        return sum(1 for event in self.events if event.get("event") == name)

    async def kill(self) -> None:
        """SIGKILL: no goodbye. Returns when it is dead."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(START_LIMIT):
            return await self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def launched(
    url: str, name: str, *, module: str = "rebaser", python: str = sys.executable, **settings: object
) -> AsyncIterator[ServerProcess]:
    """Run a daemon, perhaps not ready yet; stopped by SIGTERM when this is left. `module`: a variant of it."""
    given = {"spark": "local[1]", "log_format": "json", "server_id": name, "nats_url": url} | settings
    async with (
        await anyio.open_process(
            [python, "-m", module, "serve"],
            stdout=None,
            cwd=ROOT,
            env=environment(**{key: str(one) for key, one in given.items()}),
        ) as process,
        anyio.create_task_group() as group,
    ):
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
    """Run daemons that start side by side, all of them ready (`warm`: to derive, too) when this is entered."""
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(launched(url, name, **settings)) for name in names]
        for one in running:
            await one.wait_for("server_ready")
        for one in running if warm else ():
            await one.wait_for("dvu_ready")
        yield running
