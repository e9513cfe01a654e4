"""The command line: `rebaser`, also `python -m rebaser`.

Invariant: importing this package imports no command's work, so that `--help` and completion answer at once.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    from rebaser.cli.app import run

    sys.exit(run(sys.argv[1:]))
