"""`rebaser` with an engine that computes in the server's process, for tests that do not need Spark."""

import sys
from contextlib import nullcontext

from rebaser.cli import main, spark_prestart
from rebaser.runtime import context
from rebaser.testing.in_process import InProcessEngine

if __name__ == "__main__":
    spark_prestart.prestarted_spark = lambda _: nullcontext()  # type: ignore[assignment, return-value] # no JVM, either
    context._spark = lambda *_: InProcessEngine()  # type: ignore[assignment]
    sys.exit(main())  # type: ignore[func-returns-value]
