"""A process that the server of commands has forked, for tests that watch it and send it signals."""

import contextlib
import os
import signal
import socket

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream, Process

from tests.support.command_server import received
from tests.support.commands import COMMANDS

CHUNK = 65536  # bytes


class Pipe(ByteReceiveStream):
    """The end of a pipe from which the output of a process is read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    async def receive(self, max_bytes: int = CHUNK) -> bytes:
        while True:
            try:
                chunk = os.read(self._fd, max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._fd)
                continue
            if not chunk:
                raise anyio.EndOfStream
            return chunk

    async def aclose(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Forked(Process):
    """The process, with its standard error as a pipe. Its standard output is that of the tests."""

    stdin = None
    stdout = None

    def __init__(self, answers: socket.socket, stderr: Pipe) -> None:
        self._answers = answers
        self._pid = received(answers)
        self._code: int | None = None
        self._stderr = stderr
        self._waiting = anyio.Lock()
        answers.setblocking(False)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def stderr(self) -> ByteReceiveStream:
        return self._stderr

    @property
    def returncode(self) -> int | None:
        if self._code is None:
            try:
                self._code = received(self._answers)
            except BlockingIOError:
                return None
        return self._code

    async def wait(self) -> int:
        async with self._waiting:  # several tasks may wait, but only one for a socket
            while (code := self.returncode) is None:
                await anyio.wait_readable(self._answers)
            return code

    def send_signal(self, signal: signal.Signals) -> None:
        if self.returncode is None:
            self._send(signal)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process, also if the server of commands is gone, which would tell the exit code."""
        if self._code is None:
            self._send(signal.SIGKILL)

    def _send(self, signal: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal)

    async def aclose(self) -> None:
        """Wait for the end of the process, or end it if that is cancelled."""
        try:
            await self.wait()
        except AssertionError:  # nobody will tell when it ends
            self.kill()
            raise
        except BaseException:
            self.kill()
            with anyio.CancelScope(shield=True):
                await self.wait()
            raise
        finally:
            self._answers.close()
            await self._stderr.aclose()


async def fork(module: str, *arguments: str, environment: dict[str, str]) -> Forked:
    """Start `python -m module` with the arguments in a process in which `rebaser` is already imported."""
    return await to_thread.run_sync(_fork, module, arguments, environment)


def _fork(module: str, arguments: tuple[str, ...], environment: dict[str, str]) -> Forked:
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return Forked(COMMANDS.fork(module, arguments, environment, (nothing, 1, write)), Pipe(read))
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(nothing)
        os.close(write)
