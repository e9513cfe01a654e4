"""Starts the embedded Spark before the modules of a server are loaded: either takes seconds, and another processor.

Invariant: it is gone when `spark_ahead` is left, whoever used it, and when a signal ends the process before `running`
has taken signals over, or after. What is wrong with it (there is no Java, say) the server says, who asks for it.
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
def spark_ahead(settings: "Settings") -> Iterator["Jvm | None"]:
    """The embedded Spark that `settings` ask for, begun; None if it is elsewhere, or not installed."""
    if not settings.spark.startswith("local") or find_spec("pyspark") is None:
        yield None
        return
    from rebaser.embedded.spark import Jvm, default_parallelism, spark_master

    # Spark has a working folder of its own, where a relative path would name another place.
    scratch = settings.scratch.absolute() if settings.scratch else None
    jvm = Jvm(spark_master(settings.spark, default_parallelism()), memory=settings.spark_driver_memory, scratch=scratch)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def leave(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
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
    jvm.begin()
    try:
        yield jvm
    finally:
        handle(dict.fromkeys(before, leave))  # whoever took them over has let them go
        jvm.stop()
        handle(before)
