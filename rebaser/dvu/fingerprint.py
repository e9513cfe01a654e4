"""Computes a fingerprint of the code that computes values.

Planner and workers must run the same code. Otherwise, a result could depend on the machine that computed it.

Invariant: the fingerprint changes with every source file that affects a result, and with the versions of Python and of
the CEL library.
"""

import hashlib
import importlib.metadata
import sys
from functools import cache
from pathlib import Path

import rebaser_core

_CORE, _DVU = Path(rebaser_core.__file__).parent, Path(__file__).parent
# The packages that run on executors, or that build the input of executors. `tests/unit/test_layers.py` checks that this
# list is complete.
_ROOMS = (_CORE, *(_DVU / room for room in ("cel", "compiled", "functions", "wire", "worker")))


def digest(*parts: bytes) -> str:
    """Return a short hash of `parts`. The hash also depends on where each part ends, so moving a byte from one part to
    the next changes the hash."""
    state = hashlib.blake2b(digest_size=12)
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.hexdigest()


@cache
def code() -> str:
    """Return the fingerprint of the evaluator and the built-in functions in this process."""
    versions = f"{sys.version_info[:2]} {importlib.metadata.version('cel-expr-python')}"
    files = [*(file for room in _ROOMS for file in room.rglob("*.py")), *_DVU.glob("*.py")]
    named = sorted((_relative_name(file), file.read_bytes()) for file in files)
    return digest(versions.encode(), *(part for name, source in named for part in (name.encode(), source)))


def _relative_name(file: Path) -> str:
    """Return the path of `file` relative to its package's folder, because absolute paths differ between machines."""
    root = _CORE if file.is_relative_to(_CORE) else _DVU.parent
    return file.relative_to(root.parent).as_posix()
