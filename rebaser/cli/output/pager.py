"""Shows long output on a terminal in a pager, like git.

Invariant: a pager is used only if stdout is a terminal. The pager gets the output that the terminal would get,
including colours.
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

# The options that git uses: show colours; if the output fits on the screen, end at once and leave the output there.
LESS = "FRX"


@contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """Collect the output of the `with` block, and show it in a pager when the block ends.

    If the block fails, its output is shown without the pager. If `wanted` is false, if stdout is not a terminal, or if
    there is no pager, the block writes to stdout as usual. The environment variable `PAGER` specifies the pager
    (default: less); an empty value or `cat` means no pager.
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
    """Return the pager's command, or an empty list if there is no pager."""
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
    # The pager handles Ctrl-C, so the command ignores it until the pager ends.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(BrokenPipeError):  # the user has closed the pager
            pager.communicate(text)
        pager.wait()
    finally:
        signal.signal(signal.SIGINT, handler)
    return True
