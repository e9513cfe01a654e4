"""Spark's Python daemon (`spark.python.daemon.module`). It loads what workers need before it forks them.

Invariant: this module does not affect results. With this daemon, a worker starts in a tenth of a second instead of
seconds. That also matters after the first job, because Spark ends a worker that has been idle for a minute.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

from pyspark.daemon import manager


def preload() -> None:
    """Load the modules of a worker, and compiled code if this machine has it cached. Failures are ignored, because they
    recur in the worker, which reports them to the sender of the job."""
    with contextlib.suppress(Exception):
        import pyarrow as pa  # noqa: PLC0415
        import pyspark.worker  # noqa: F401, PLC0415

        from rebaser.dvu.compiled import loader  # noqa: PLC0415
        from rebaser.dvu.functions import registry  # noqa: PLC0415

        has_plugins = any(function.fingerprint for function in registry().functions.values())
        with contextlib.nullcontext() if has_plugins else without_pandas():
            pa.array([0])  # when it first makes an array from a list, Arrow loads pandas, if that is installed
        if loader.is_cached():
            loader.load()
    gc.freeze()  # a worker collects garbage after every job; skipping the objects loaded here saves 70 ms each time


class _NoPandas(MetaPathFinder):
    """An import hook that hides pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """Hide pandas from Arrow, which looks for it once. Loading pandas takes a second, and only plug-ins use it."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Redirect stdout to stderr. Spark takes the first bytes on stdout for the daemon's address, and would wait forever
    if a log event or a plug-in printed there first."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


if __name__ == "__main__":
    with quiet():
        preload()
    manager()
