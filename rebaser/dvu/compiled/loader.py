"""Loads compiled code, compiles missing code, and keeps it on disk for later processes.

Invariant: compiled code and Python give the same results, to the bit. If a machine cannot load compiled code, Python
computes everything.

Compiled code is loaded only if that saves time. Importing Numba takes a second, and compiling takes longer, once for
each machine and release.
"""

import contextlib
import importlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from types import FunctionType, SimpleNamespace
from typing import Any, Final

from rebaser.dvu import fingerprint

_FOLDER = "NUMBA_CACHE_DIR"  # the environment variable with which Numba's users set the folder of compiled code
_UNUSED_MAX = 14 * 24 * 3600.0  # seconds after which unused compiled code of another release is removed

_folder_lock: Final = Lock()
_kernel: Any = None
_unavailable = False


def load() -> bool:
    """Load the kernel, and compile it first if it is not on this machine yet. Return whether it is available."""
    global _kernel, _unavailable  # noqa: PLW0603 - once per process
    if _kernel is None and not _unavailable:
        try:
            folder = _cache_folder()
            was_cached = is_cached()
            with _caching_in(folder):
                _kernel = importlib.import_module("rebaser.dvu.compiled.kernel")
            if folder and not was_cached:
                _prune(Path(folder))
        except Exception as error:  # noqa: BLE001 - without Numba, Python computes everything
            _unavailable = True
            import structlog  # noqa: PLC0415 - slow to import, and rarely needed by workers, which import this module

            structlog.get_logger(__name__).warning("no_compiled_code", reason=f"{type(error).__name__}: {error}"[:300])
    return _kernel is not None


def kernel() -> Any:
    """Return the module `rebaser.dvu.compiled.kernel`; None if `load` has not loaded it."""
    return _kernel


def is_cached() -> bool:
    """Return whether the compiled kernel of this release is in the cache of this machine."""
    folder = _cache_folder()
    # Files of other modules do not count: the folder may contain only the loops of planning.
    return bool(folder) and any(Path(folder).rglob("*sweep*.nbc"))


def compile_module(functions: Any) -> Any:
    """Return the functions of a module, compiled if Numba is installed. Compiled functions do not hold the interpreter
    lock.

    A function may call functions that are defined above it. A function whose name begins with an underscore is inlined
    into its callers.
    """
    try:
        import numba  # noqa: PLC0415 - takes a second to load
    except ImportError:
        return functions
    with _caching_in(_cache_folder()):
        compiled: dict[str, Any] = {}
        for name, function in vars(functions).items():
            if callable(function):
                calls_compiled = FunctionType(function.__code__, {**function.__globals__, **compiled}, name)
                compile_ = numba.njit(cache=True, nogil=True, forceinline=name.startswith("_"))
                compiled[name] = compile_(calls_compiled)
    return SimpleNamespace(**compiled)


def _prune(own: Path) -> None:
    """Remove the compiled code of other releases that has not been used for two weeks.

    This does not harm a process that still runs such a release: Numba treats a removed file as if it had never existed,
    and creates its folder again. Each folder is renamed first, so that no process reads a partly removed folder.
    """
    oldest = time.time() - _UNUSED_MAX
    for other in own.parent.glob("kernel-*"):
        with contextlib.suppress(OSError):  # another process is removing the folder, or this process lacks permission
            if other != own and other.stat().st_mtime < oldest:
                doomed = other.with_name(f"{other.name}-{os.getpid()}")
                other.rename(doomed)
                shutil.rmtree(doomed)


def _cache_folder() -> str:
    """Return the folder for compiled code of this release; empty if this process cannot write to the folder. Also set
    the folder's time of last use to now."""
    caches = os.environ.get("XDG_CACHE_HOME") or ("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    root = Path(os.environ[_FOLDER]) if os.environ.get(_FOLDER) else Path(caches, "rebaser")
    with contextlib.suppress(OSError, RuntimeError):
        folder = root.expanduser() / f"kernel-{fingerprint.code()}"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.utime(folder)
            return str(folder)
    return ""


@contextlib.contextmanager
def _caching_in(folder: str) -> Iterator[None]:
    """Enter a context in which Numba stores compiled code in `folder`. Only one thread at a time can be in this
    context, because Numba has one folder for all threads."""
    from numba import config  # noqa: PLC0415 - takes a second to load

    with _folder_lock:
        before, config.CACHE_DIR = config.CACHE_DIR, folder
        try:
            yield
        finally:
            config.CACHE_DIR = before
