"""Spark's Python daemon (`spark.python.daemon.module`), with what its workers need loaded before they are forked.

Invariant: nothing here decides a result. A worker takes a tenth of a second to start instead of seconds; Spark ends one
that has been idle for a minute, so that is not only a matter of the first job.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

from pyspark.daemon import manager


def preload() -> None:
    """Load the modules of a worker, and compiled code if it is kept on this machine. A failure is the worker's to
    tell, to whoever sent the job."""
    with contextlib.suppress(Exception):
        import pyarrow as pa  # noqa: PLC0415
        import pyspark.worker  # noqa: F401, PLC0415

        from rebaser.dvu.compiled import loader  # noqa: PLC0415
        from rebaser.dvu.functions import registry  # noqa: PLC0415

        plugged = any(one.fingerprint for one in registry().functions.values())
        with contextlib.nullcontext() if plugged else without_pandas():
            pa.array([0])  # the first that is made of a list has Arrow load pandas, where there is one
        if loader.is_cached():
            loader.load()
    gc.freeze()  # a worker looks for garbage after every job, and for 70 ms of it in what is loaded here


class _NoPandas(MetaPathFinder):
    """Says that there is none."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """Arrow looks for pandas once, and takes a second to load what only plug-ins may want: without any, it finds none
    inside."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What is said on stdout meanwhile, by log events or plug-ins, goes to stderr: Spark takes the first bytes there
    for the daemon's address, and waits for ever if they are not."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    with quiet():
        preload()
    manager()
