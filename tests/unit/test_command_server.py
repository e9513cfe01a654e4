"""The server of commands fails the test that asked for a command, and not the run."""

import io
import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.support.command_server import Command, Commands, Server
from tests.support.forked import Forked, Pipe


def test_a_server_that_ends_before_it_names_a_process_fails_the_command() -> None:
    """Process 0, to a signal, is the whole group of this process."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(AssertionError, match="the server of commands has ended"):
        Command(["rebaser"], ours, io.BytesIO(), io.BytesIO())
    assert ours.fileno() == -1


def test_a_command_that_has_gone_already_can_be_closed() -> None:
    with child("") as gone:
        gone.wait()
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.send(gone.pid.to_bytes(8, "big"))
    with Command(["rebaser"], ours, io.BytesIO(), io.BytesIO()) as command:
        pass
    assert command.answers.fileno() == -1


def test_a_server_that_cannot_fork_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refused)
    ours, theirs = socket.socketpair()
    with ours:
        assert Server.__new__(Server)._fork({}, [theirs.detach()]) is None
        assert ours.recv(8) == b""


def test_after_a_server_that_cannot_be_reached_another_one_is_started() -> None:
    commands = Commands()
    commands._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with pytest.raises(ConnectionError):
        commands.start([], {})
    assert commands._socket is None


def test_the_exit_code_is_told_while_the_process_id_is_still_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a signal could go to another process."""
    ended = [os.waitid_result((17, 0, signal.SIGCHLD, signal.SIGTERM, os.CLD_KILLED)), None]
    monkeypatch.setattr(os, "waitid", lambda *_: ended.pop(0))
    told, server = [], Server.__new__(Server)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    monkeypatch.setattr(os, "waitpid", lambda *_: told.append(ours.recv(8)))
    server._running = {17: theirs}
    with ours:
        server._reap()
    assert [int.from_bytes(code, "big", signed=True) for code in told] == [-signal.SIGTERM]


@pytest.mark.anyio
async def test_a_process_is_ended_though_the_server_that_would_tell_its_exit_code_is_gone() -> None:
    with child("import signal; signal.pause()") as process:
        with pytest.raises(AssertionError, match="the server of commands has ended"):
            await forked(process.pid).aclose()
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.anyio
async def test_a_signal_to_a_process_that_has_gone_already_does_nothing() -> None:
    with child("") as gone:
        gone.wait()
    process = forked(gone.pid, code=0)
    process.kill()
    process.terminate()
    await process.aclose()


def child(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program])


def forked(pid: int, **ended: int) -> Forked:
    """Return a process whose server is gone, which has told these numbers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        for number in (pid, *ended.values()):
            theirs.send(number.to_bytes(8, "big", signed=True))
    read, write = os.pipe()
    os.close(write)
    return Forked(ours, Pipe(read))
