"""Which code computes: the planner's and the worker's must be the same, or results would depend on the machine.

Invariant: the fingerprint changes with the source of everything that decides a value, installed versions included.
"""

import hashlib
import importlib.metadata
import sys
from functools import cache
from pathlib import Path

import rebaser_core

_DVU, _CORE = Path(__file__).parent, Path(rebaser_core.__file__).parent
# What runs on executors, or decides what it is given. `tests/unit/test_layers.py` holds that no room is missing.
_ROOMS = (_CORE, *(_DVU / room for room in ("cel", "compiled", "functions", "wire", "worker")))


def digest(*parts: bytes) -> str:
    """A short hash of `parts`, their borders included."""
    state = hashlib.blake2b(digest_size=12)
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.hexdigest()


@cache
def code() -> str:
    """The fingerprint of the evaluator and the built-in functions in this process."""
    rooms = [(room, sorted(room.rglob("*.py"))) for room in _ROOMS]
    files = [
        (file.relative_to(room.parent), file)
        for room, inside in (*rooms, (_DVU, sorted(_DVU.glob("*.py"))))
        for file in inside
    ]
    versions = f"{sys.version_info[:2]} {importlib.metadata.version('cel-expr-python')}"
    parts = [part for name, file in files for part in (name.as_posix().encode(), file.read_bytes())]
    return digest(versions.encode(), *parts)
