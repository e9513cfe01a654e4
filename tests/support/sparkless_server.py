"""`rebaser`, computing in its own process: for what is to be seen of a server whatever computes for it."""

import sys

from rebaser.cli import main
from rebaser.runtime import context
from rebaser.testing.in_process import InProcessEngine

if __name__ == "__main__":
    context._spark = lambda *_: InProcessEngine()  # type: ignore[assignment]
    sys.exit(main())  # type: ignore[func-returns-value]
