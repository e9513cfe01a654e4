"""Reads single keys from a terminal.

Invariant: when the context `keyboard` ends, the terminal's previous settings are restored. Suspending the process
(Ctrl-Z) is disabled within the context, because it would return the user to the shell on a terminal without echo.
"""

import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio

_ESCAPES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown", b"\x1b": "escape",
    b"\r": "enter", b"\n": "enter", b"k": "up", b"j": "down",
}  # fmt: skip
_KEY = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|\x1b|[^\x1b]", re.DOTALL)


def parse_keys(data: bytes) -> list[str]:
    """Return the keys in `data`: names such as `up`, `down` and `enter`, or letters and digits. Other keys are
    ignored."""
    keys = [
        _ESCAPES.get(one) or (one.decode("ascii", "replace") if one.isalnum() else "") for one in _KEY.findall(data)
    ]
    return [key for key in keys if key]


@contextmanager
def keyboard() -> Iterator[int | None]:
    """Make the terminal pass on each key immediately, without echo. Yield its descriptor, or None if stdin is not a
    terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    now = termios.tcgetattr(descriptor)
    now[3] &= ~(termios.ICANON | termios.ECHO)
    now[6][termios.VSUSP] = b"\0"
    now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
    termios.tcsetattr(descriptor, termios.TCSADRAIN, now)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


async def read_keys(descriptor: int) -> AsyncIterator[str]:
    """Yield the keys that are pressed, until the terminal is closed."""
    while True:
        await anyio.wait_readable(descriptor)
        data = os.read(descriptor, 1024)
        if not data:
            return
        for key in parse_keys(data):
            yield key
