"""Starts the embedded Spark while the server's modules are being imported. Each takes seconds, but they run on
different CPUs.

Invariant: Spark is stopped when `prestarted_spark` exits, and also when a signal ends the process while
`rebaser.cli.runner` is not handling signals. Errors, such as missing Java, are not reported here: the server gets them
when it needs Spark.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser.embedded.spark import Jvm
    from rebaser.settings import Settings


@contextmanager
def prestarted_spark(settings: "Settings") -> Iterator["Jvm | None"]:
    """Start the embedded Spark of `settings`, and yield its JVM. Yield None if Spark is external or not installed."""
    if not settings.spark.startswith("local") or find_spec("pyspark") is None:
        yield None
        return
    from rebaser.embedded.spark import Jvm, default_parallelism, spark_master

    # Spark changes its working folder, so a relative path would refer to a different folder.
    scratch = settings.scratch.absolute() if settings.scratch else None
    jvm = Jvm(spark_master(settings.spark, default_parallelism()), memory=settings.spark_driver_memory, scratch=scratch)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def leave(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
        try:
            jvm.kill()
            jvm.stop()
        finally:
            os._exit(128 + number)

    def handle(handlers: dict[signal.Signals, Any]) -> None:
        for number, handler in handlers.items():
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, handler)

    handle(dict.fromkeys(before, leave))
    jvm.start_in_background()
    try:
        yield jvm
    finally:
        handle(dict.fromkeys(before, leave))  # set the handlers again, because the runner has replaced them
        jvm.stop()
        handle(before)
