"""Identifies the code that computes values.

Planner and workers must run the same code, or results would depend on the machine.

Invariant: the fingerprint changes with every source file that decides a value, and with the versions of Python and of
the CEL library.
"""

import hashlib
import importlib.metadata
import sys
from functools import cache
from pathlib import Path

import rebaser_core

_CORE, _DVU = Path(rebaser_core.__file__).parent, Path(__file__).parent
# Packages that run on executors, or that build the input of executors. `tests/unit/test_layers.py` checks that none is
# missing.
_ROOMS = (_CORE, *(_DVU / room for room in ("cel", "compiled", "functions", "wire", "worker")))


def digest(*parts: bytes) -> str:
    """Return a short hash of `parts` that also depends on where each part ends."""
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
    """Return the path of `file` relative to the folder that contains the packages. It is the same on every machine."""
    root = _CORE if file.is_relative_to(_CORE) else _DVU.parent
    return file.relative_to(root.parent).as_posix()
