"""The server of commands fails the test that asked for a command, and not the run."""

import io
import os
import socket
import subprocess
import sys

import pytest

from tests.support.command_server import Command, Commands, Server


def test_a_server_that_ends_before_it_names_a_process_fails_the_command() -> None:
    """Process 0, to a signal, is the whole group of this process."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(AssertionError, match="the server of commands has ended"):
        Command(["rebaser"], ours, io.BytesIO(), io.BytesIO())
    assert ours.fileno() == -1


def test_a_command_that_has_gone_already_can_be_closed() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
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
