"""The daemon from which Spark forks Python workers (`spark.python.daemon.module`). It loads the modules that workers
need before it forks any worker.

With this daemon, a worker starts in a tenth of a second instead of several seconds. This matters even after the first
job, because Spark ends a worker that has been idle for a minute. Invariant: the daemon does not affect results.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

from pyspark.daemon import manager


def preload() -> None:
    """Load the modules of a worker, and the compiled code if it is cached on this machine. Ignore failures: they occur
    again in the worker, which reports them to the sender of the job."""
    with contextlib.suppress(Exception):
        import pyarrow as pa  # noqa: PLC0415
        import pyspark.worker  # noqa: F401, PLC0415

        from rebaser.dvu.compiled import loader  # noqa: PLC0415
        from rebaser.dvu.functions import registry  # noqa: PLC0415

        has_plugins = any(function.fingerprint for function in registry().functions.values())
        with contextlib.nullcontext() if has_plugins else without_pandas():
            pa.array([0])  # when Arrow first converts a list, it loads pandas if that is installed and not hidden
        if loader.is_cached():
            loader.load()
    gc.freeze()  # saves 70 ms after every job, because the worker's garbage collections skip the objects loaded here


class _NoPandas(MetaPathFinder):
    """An import hook that hides pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """Enter a context in which pandas is hidden from Arrow, which tries to import it only once. Loading pandas takes a
    second, and only plug-ins use it."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Enter a context in which stdout is redirected to stderr. Spark reads the daemon's port from the first bytes on
    stdout. If a log event or a plug-in printed there first, Spark would wait forever."""
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
