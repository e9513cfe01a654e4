"""Compiled code in a worker: when it is used, and where it is kept.

Invariant: with it or without it, results are the same to the bit. So it is loaded where that pays (Numba takes a
second to import, and some more to compile, once for a machine and release), and its absence is no error.
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
from typing import Any, Final, Protocol

import numpy as np

from rebaser.dvu import fingerprint
from rebaser.dvu.compiled import instructions, phases
from rebaser.dvu.functions.registry import Registry
from rebaser.dvu.wire.column import Column
from rebaser.dvu.wire.packet import Work
from rebaser_core import thresholds
from rebaser_core.values import Json

_FOLDER = "NUMBA_CACHE_DIR"  # as Numba has it: where compiled code is kept
_KEPT_FOR = 14 * 24 * 3600.0  # seconds that code nobody loads is kept

_keeping: Final = Lock()
_kernel: Any = None
_absent = False


class State(Protocol):
    """What compiled code works on: `rebaser.dvu.worker.evaluator.Sweep`."""

    work: Work
    base: int
    starts: Any
    kinds: Any
    ints: Any
    floats: Any
    changed: Any


def load() -> bool:
    """Load compiled code, and compile it if nobody has on this machine; whether it is to be had."""
    global _kernel, _absent  # noqa: PLW0603 - once for a process
    if _kernel is None and not _absent:
        try:
            folder = _folder()
            had = kept()
            with _kept_in(folder):
                _kernel = importlib.import_module("rebaser.dvu.compiled.kernel")
            if folder and not had:
                _prune(Path(folder))
        except Exception as error:  # noqa: BLE001 - no Numba for this Python or machine: Python can do it all
            _absent = True
            import structlog  # noqa: PLC0415 - as in `registry`

            structlog.get_logger(__name__).warning("no_compiled_code", reason=f"{type(error).__name__}: {error}"[:300])
    return _kernel is not None


def kept() -> bool:
    """Whether compiled code of this release is on this machine already."""
    folder = _folder()
    return bool(folder) and any(Path(folder).rglob("*sweep*.nbc"))  # those of planning are there without it


def _prune(own: Path) -> None:
    """Remove what was compiled for other releases and not looked for of late.

    Who still runs one misses nothing: Numba takes a file that is gone for one that never was, and makes its folder
    anew. Renamed first, so that no other process finds a folder half removed.
    """
    oldest = time.time() - _KEPT_FOR
    for other in own.parent.glob("kernel-*"):
        with contextlib.suppress(OSError):  # another process is at it, or may do what this one may not
            if other != own and other.stat().st_mtime < oldest:
                gone = other.with_name(f"{other.name}-{os.getpid()}")
                other.rename(gone)
                shutil.rmtree(gone)


def _folder() -> str:
    """Where compiled code of this very release is kept, which is as good as new then; empty if nothing can be kept."""
    caches = os.environ.get("XDG_CACHE_HOME") or ("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    root = Path(os.environ[_FOLDER]) if os.environ.get(_FOLDER) else Path(caches, "rebaser")
    with contextlib.suppress(OSError, RuntimeError):
        folder = root.expanduser() / f"kernel-{fingerprint.code()}"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.utime(folder)
            return str(folder)
    return ""


def linked(work: Work, functions: Registry, most: int) -> "Linked | None":
    """The programs of a packet, ready to run; None if Python should compute all of it.

    A node with more than `most` inputs is left to Python.
    """
    count, limits = len(work.shape), thresholds.now
    if count + len(work.refs) < (limits.cold if _kernel is None else limits.warm):
        return None
    uses = work.uses if work.uses is not None else np.bincount(work.shape, minlength=len(work.shapes))
    from rebaser.dvu.compiled.translate import translate  # noqa: PLC0415 - small packets do without

    programs = [
        translate(shape, functions.functions.get(shape.function))
        if used >= min(limits.formula, count) or used * shape.arity >= limits.warm
        else None
        for shape, used in zip(work.shapes, uses.tolist(), strict=True)
    ]
    covered = sum(used for program, used in zip(programs, uses.tolist(), strict=True) if program is not None)
    if not covered or (_kernel is None and covered * 4 < count) or not load():
        return None
    return Linked(programs, most)


def _forms(program: instructions.Program | None) -> tuple[instructions.Program | None, ...]:
    """For any inputs, for doubles, for integers."""
    return (program, instructions.in_doubles(program), instructions.in_wholes(program)) if program is not None else ()


class Linked:
    """Programs in one piece, and the registers they run on."""

    def __init__(self, programs: list[instructions.Program | None], most: int) -> None:
        self.covers = [program is not None for program in programs]
        self._most = most
        self._entries = np.full((len(programs), 3), -1, np.int32)
        code: list[instructions.Instruction] = []
        constants: list[Json] = []
        for at, general in enumerate(programs):
            for form, program in enumerate(_forms(general)):
                if program is not None:
                    self._entries[at, form] = len(code)
                    code += program.placed(len(code), instructions.CONSTANTS + len(constants))
                    constants += program.constants
        self._code = np.array(code, np.uint32).reshape(-1, 4)
        registers = Column.of([*[None] * instructions.CONSTANTS, *constants])
        self._kinds, self._ints = registers.kinds.copy(), registers.bits
        self._floats = self._ints.view(np.float64)
        self._scratch = _kernel.scratch()

    def sweep(self, state: State, order: Any, at: int, end: int) -> int:
        """Settle nodes from place `at` on in `order` (as they stand, if that is empty); the place of the first that is
        left to Python, or `end`."""
        work = state.work
        stopped: int = _kernel.sweep(
            *(at, end, state.base, order, work.shape, state.starts),
            *(work.refs.view(np.uint32), work.dirty.view(np.uint8)),
            *(state.kinds, state.ints, state.floats, state.floats.view(np.int64), state.changed),
            *(self._entries, self._code, self._most),
            *(self._kinds, self._ints, self._floats, self._scratch),
        )
        return stopped


def in_phases(state: State, flags: Any) -> tuple[Any, Any]:
    """The nodes of a packet in the order of `rebaser.dvu.compiled.phases`, and where each phase begins, the end
    included."""
    refs, count = state.work.refs, len(state.work.shape)
    given = (state.work.shape, state.starts, refs.view(np.uint32), state.kinds, flags)
    begin, order = np.zeros(2 * count + 2, np.int32), np.empty(count, np.int32)
    if _kernel is not None or (count + len(refs) >= thresholds.now.cold and load()):
        room = np.empty(count, np.int32), np.empty(count, np.uint8)
        found = _kernel.phases(state.base, *given, *room, begin, order)
        return order, begin[: found + 1]
    begins, ordered = [0] * len(begin), [0] * count
    lists: list[Any] = [one.tolist() for one in given]
    found = phases.phases(state.base, *lists, [0] * count, bytearray(count), begins, ordered)  # type: ignore[call-arg]
    return np.array(ordered, np.int32), np.array(begins[: found + 1], np.int32)


def module(functions: Any) -> Any:
    """The functions of a module, compiled where that can be had; they hold no lock while they run."""
    from types import SimpleNamespace  # noqa: PLC0415

    try:
        import numba  # noqa: PLC0415 - a second to load
    except ImportError:
        return functions
    with _kept_in(_folder()):
        compile_ = numba.njit(cache=True, nogil=True)
        found = {name: compile_(one) for name, one in vars(functions).items() if callable(one)}
    return SimpleNamespace(**found)


@contextlib.contextmanager
def _kept_in(folder: str) -> Iterator[None]:
    """What is compiled inside is kept in `folder`. Numba has one folder for all threads, so they take turns."""
    from numba import config  # noqa: PLC0415 - a second to load

    with _keeping:
        before, config.CACHE_DIR = config.CACHE_DIR, folder
        try:
            yield
        finally:
            config.CACHE_DIR = before
