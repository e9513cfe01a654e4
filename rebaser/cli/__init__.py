"""The command line, `rebaser` or `python -m rebaser`, for users and operators.

`app` is the root of the command line, and `registry` lists its commands. `commands` has a module for each command,
`sending` reads and sends edits, and `demo` is the tour of `rebaser demo`. The other modules are shared: options,
output, errors, signals, connections. This package may import all others; no other package imports it.

Invariant: importing this package imports nothing that a command needs for its work, so that `--help` and shell
completion answer at once.
"""

import gc
import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    # While modules are imported and after the command has ended, Ctrl-C may end the process at once. Code that has to
    # clean up handles the signal itself (`runner`, `spark_prestart`). If the signal is ignored (`nohup`), it stays
    # ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)
    gc.disable()  # off until `runner` starts: imports create many objects, but no garbage
    from rebaser.cli import lazy_modules

    lazy_modules.install()
    from rebaser.cli.app import run

    code = run(sys.argv[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)
    gc.freeze()  # otherwise, the interpreter searches all imported objects for garbage before it ends
    sys.exit(code)


def _exit_at_once(number: int, _frame: object) -> None:
    os._exit(128 + number)
