"""Runs commands of `rebaser` in processes that are forked from one in which their modules are loaded already.

Most tests of the command line look at what a command prints, and most tests of servers at what they do once they run.
`python -m rebaser` spends most of its processor time on imports, and so does a server until it is ready. So `Commands`
starts a process that imports modules once. Each command is a process of its own, with its own arguments,
environment, pipes and exit code. Unlike a real process, it has modules loaded already, and has not read what an
interpreter and `rebaser` read when they start: all commands that one process forks have the same hash seed, and
variables such as PYTHONHASHSEED and REBASER_TEST_THRESHOLDS have no effect. What happens at a start is tested with real
processes (`tests.support.commands.command`), and `tests.support.import_alone` imports the module of each command
without those of others.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

ROOT = Path(__file__).parents[2]
PACKAGES = ("rebaser_core", "rebaser_client", "rebaser.cli", "rebaser.doctor")
SERVING = (  # what `rebaser serve` imports beyond those
    "rebaser.serving",
    "rebaser.testing.in_process",
    "uvloop",
)
LEFT_OUT = ("spark", "blocking", "rebaser.cli.demo")  # parts of names: with threads of their own, or seldom used
REQUEST_BYTES = 1 << 20
OUTSIDE = dict(os.environ)  # as this process was given it, before tests and imports change it


def received(answers: socket.socket) -> int:
    """Return the next number of a socket that `Commands.fork` has returned."""
    number = answers.recv(8)
    assert len(number) == 8, "the server of commands has ended, or cannot fork; its stderr may say why"
    return int.from_bytes(number, "big", signed=True)


class Command:
    """A command that was started. Close it."""

    def __init__(self, arguments: Sequence[str], answers: socket.socket, out: BinaryIO, err: BinaryIO) -> None:
        self.args = arguments
        self.answers = answers  # readable once the command has ended
        self._out, self._err = out, err
        self._ended = False
        try:
            self._pid = received(answers)
        except AssertionError:
            self._close()
            raise

    def result(self) -> subprocess.CompletedProcess[str]:
        """Wait for the end of the command."""
        code = received(self.answers)
        self._ended = True
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess(self.args, code, *texts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        self.answers.close()
        self._out.close()
        self._err.close()


class Commands:
    """The server of commands that belongs to this process. It starts with the first command, and ends with the
    process."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._starting = threading.Lock()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"") -> Command:
        """Start `rebaser` with the arguments. `environment` is its whole environment."""
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - `Command` closes them
        source, sink = os.pipe()
        try:
            answers = self.fork("rebaser", arguments, environment, (source, out.fileno(), err.fileno()))
        except OSError:
            out.close()
            err.close()
            os.close(sink)
            raise
        finally:
            os.close(source)
        threading.Thread(target=_write, args=(sink, stdin), daemon=True).start()
        return Command(["rebaser", *arguments], answers, out, err)

    def fork(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], pipes: tuple[int, int, int]
    ) -> socket.socket:
        """Have a process forked that runs a module, `rebaser` or a variant of it. `pipes` are its standard input,
        output and error.

        Return a socket that gives its process id first, and its exit code once it has ended: see `received`.
        """
        connection = self._connected()
        ours, theirs = socket.socketpair()
        with theirs:
            asked = {"module": module, "arguments": list(arguments), "environment": dict(environment)}
            request = json.dumps(asked).encode()
            assert len(request) < REQUEST_BYTES
            try:
                socket.send_fds(connection, [request], [theirs.fileno(), *pipes])
            except OSError:
                ours.close()
                with self._starting:
                    if self._socket is connection:
                        connection.close()
                        self._socket = None  # the next command starts another server
                raise
        return ours

    def _connected(self) -> socket.socket:
        with self._starting:
            if self._socket is None:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    atexit.register(_end, ours, _started(theirs))
                self._socket = ours
            return self._socket


def _started(connection: socket.socket) -> subprocess.Popen[bytes]:
    outside = {name: value for name, value in OUTSIDE.items() if not name.startswith("REBASER_")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.command_server", str(connection.fileno())],
        cwd=ROOT,
        env=outside | {"OPENBLAS_NUM_THREADS": "1"},  # a process with threads should not fork
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
    )


def _end(connection: socket.socket, server: subprocess.Popen[bytes]) -> None:
    connection.close()
    server.wait(60)


def _write(sink: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(sink, "wb") as pipe:
        pipe.write(data)


# -- the server --------------------------------------------------------------------------------------------------------


class Server:
    """Forks a process for each request on a socket, and sends its exit code, until the socket is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._running: dict[int, socket.socket] = {}  # by process: where its exit code goes
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        self._sigint = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, which end this process
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> list[str] | None:
        """Return the module and the arguments in the process that was forked for them, and None in the server at its
        end."""
        while True:
            ready, _, _ = select.select([self._connection.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 1000)
                self._reap()
            if self._connection.fileno() in ready:
                request, fds, _, _ = socket.recv_fds(self._connection, REQUEST_BYTES, 4)
                if not request:
                    return None
                asked = json.loads(request)
                if asked["arguments"][:1] == ["serve"] and SERVING[0] not in sys.modules:
                    for name in SERVING:
                        importlib.import_module(name)
                    gc.collect()
                    gc.freeze()
                if (words := self._fork(asked, fds)) is not None:
                    return words

    def _fork(self, asked: dict[str, Any], fds: list[int]) -> list[str] | None:
        try:
            pid = os.fork()
        except OSError as error:
            print(f"the server of commands cannot fork: {error}", file=sys.stderr, flush=True)
            for fd in fds:
                os.close(fd)
            return None
        if pid:
            answers = socket.socket(fileno=fds[0])
            with contextlib.suppress(OSError):  # the caller may be gone
                answers.send(pid.to_bytes(8, "big", signed=True))
            self._running[pid] = answers
            for fd in fds[1:]:
                os.close(fd)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self._sigint)
        for number, fd in enumerate(fds[1:]):
            os.dup2(fd, number)
        # The streams of the server have cached whether the server's own files are seekable.
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        self._connection.close()
        for other in self._running.values():
            other.close()
        for fd in fds:
            os.close(fd)
        imported = {name: value for name, value in os.environ.items() if name not in OUTSIDE}  # what imports have set
        os.environ.clear()
        os.environ.update(imported | asked["environment"])
        for folder in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):  # of plug-ins, for example
            if folder and folder not in sys.path:
                sys.path.insert(1, folder)
        return [asked["module"], *asked["arguments"]]

    def _reap(self) -> None:
        while self._running:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                break
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            with self._running.pop(ended.si_pid) as answers, contextlib.suppress(OSError):
                answers.send(code.to_bytes(8, "big", signed=True))
            os.waitpid(ended.si_pid, 0)  # only now, so that nobody sends a signal to another process with this id


def load() -> None:
    """Import what commands import while they run."""
    from rebaser.cli import lazy_modules

    lazy_modules.install()
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not any(part in module.name for part in LEFT_OUT):
                importlib.import_module(module.name)
    from rebaser_core.messages import REGISTRY

    REGISTRY.build()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    load()
    if words := Server(socket.socket(fileno=int(sys.argv[1]))).serve():
        sys.argv[1:] = words[1:]
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
