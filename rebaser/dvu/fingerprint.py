"""Which code computes: the planner's and the worker's must be the same, or results would depend on the machine.

Invariant: the fingerprint changes with the source of everything that decides a value, installed versions included.
"""

import hashlib
import importlib.metadata
import sys
from functools import cache
from pathlib import Path

import rebaser_core

_HERE = Path(__file__).parent
_SOURCES = (
    *("bytecode.py", "cel.py", "column.py", "compiled.py", "evaluate.py", "fingerprint.py"),
    *("formula_code.py", "groups.py", "kernel", "ops.py", "packet.py", "phases.py", "same.py", "structure.py"),
    *("structures.py", "sweep.py", "functions"),
)
_OF_CORE = ("cel", "values.py")


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
    files: list[Path] = []
    paths = [Path(rebaser_core.__file__).with_name(name) for name in _OF_CORE]
    for path in [*paths, *(_HERE / name for name in _SOURCES)]:
        files.extend(sorted(path.glob("*.py")) if path.is_dir() else [path])
    versions = f"{sys.version_info[:2]} {importlib.metadata.version('cel-expr-python')}"
    return digest(versions.encode(), *(part for file in files for part in (file.name.encode(), file.read_bytes())))
