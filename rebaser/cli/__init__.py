"""The command line: `rebaser`, also `python -m rebaser`.

Invariant: importing this package imports no command's work, so that `--help` and completion answer at once.
"""

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    # Whoever presses Ctrl-C while modules are loaded, or after all is done, has nothing that must be cleaned up. What
    # has takes the signal over (`running`, `ahead`); where it is ignored (`nohup`), it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from rebaser.cli.app import run

    code = run(sys.argv[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    sys.exit(code)


def _leave(number: int, _frame: object) -> None:
    os._exit(128 + number)
