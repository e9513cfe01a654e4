"""Shows long output on a terminal in a pager, as git does.

Invariant: there is no pager unless stdout is a terminal. The pager gets the same output as the terminal would, colours
included.
"""

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rebaser.cli.output import console

# The options that git uses: show colours, and if the output fits on the screen, end at once and leave it there.
LESS = "FRX"


@contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """Collect the output of the `with` block, and show it in a pager when the block ends.

    If the block fails, its output is shown without the pager. The block writes to stdout as usual if `wanted` is false,
    if stdout is not a terminal, or if there is no pager. The variable `PAGER` names the pager (default: less); empty or
    `cat` means no pager.
    """
    command = _command() if wanted and console.is_terminal() and sys.stdout.isatty() else []
    if not command:
        yield
        return
    stdout, sys.stdout = sys.stdout, _Terminal()
    try:
        yield
        text, shown = sys.stdout.getvalue(), True
    except BaseException:
        text, shown = sys.stdout.getvalue(), False
        raise
    finally:
        sys.stdout = stdout
        if not shown or not _show(command, text.encode(errors="backslashreplace")):
            stdout.write(text)
            stdout.flush()


class _Terminal(io.StringIO):
    """Collects output, and claims to be a terminal, so that writers format their output for a terminal."""

    def isatty(self) -> bool:
        return True


def _command() -> list[str]:
    """Return the command of the pager; empty if there is none."""
    try:
        command = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:
        return []
    return command if command and command[0] != "cat" and shutil.which(command[0]) else []


def _show(command: list[str], text: bytes) -> bool:
    """Show `text` in the pager `command`. Return whether the pager could be started."""
    environment = {"LESS": LESS, "LESSCHARSET": "utf-8", "LV": "-c"} | os.environ
    try:
        pager = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603 - the user's pager
    except OSError:
        return False
    # The pager handles Ctrl-C; the command ignores it meanwhile.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(BrokenPipeError):  # the user has closed the pager
            pager.communicate(text)
        pager.wait()
    finally:
        signal.signal(signal.SIGINT, handler)
    return True
