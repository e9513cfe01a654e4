"""The command line, `rebaser` or `python -m rebaser`, for users and operators.

`app` is the root of the command line, and `registry` lists its commands. `commands` has a module for each command,
`sending` reads and sends edits, and `demo` runs the tour of `rebaser demo`. The other modules are shared by commands:
options, output, errors, signals and connections. This package may import every other package, but no other package
imports it.

Invariant: importing this package does not import the modules that commands need while they run. This lets `--help` and
shell completion answer at once.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with its exit code.

    The exit code is 0 for success, 1 for a failure, 2 for wrong usage, and 130 if the command was interrupted.
    """
    # While modules are being imported and after the command has ended, Ctrl-C may end the process at once. Code that
    # has to clean up handles the signal itself (`runner`, `spark_prestart`). A signal that is ignored (`nohup`) stays
    # ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)
    # Nothing here does linear algebra. Without this setting, NumPy starts a thread for each core when it is imported,
    # which takes a third of the processor time of a short command.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()  # imports create many objects but no garbage; `runner` turns the collector on again
    from rebaser.cli import lazy_modules

    lazy_modules.install()
    from rebaser.cli.app import run

    code = run(sys.argv[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process. If no other thread runs, skip the freeing of all objects, which takes a twentieth of the
    processor time of a short command."""
    if threading.active_count() > 1:
        gc.freeze()  # without this call, the interpreter would search all imported objects for garbage
        sys.exit(code)
    atexit._run_exitfuncs()  # noqa: SLF001 - `os._exit` skips them
    with suppress(OSError, ValueError):  # the output is closed or full; `run` has chosen the exit code accordingly
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def _exit_at_once(number: int, _frame: object) -> None:
    os._exit(128 + number)
