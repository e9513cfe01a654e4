"""Plants a bug: replaces pieces of the product's source when it is imported, in this process only.

Invariant: each replaced piece occurs exactly once in its module, so a bug that no longer fits the product is noticed.
Afterwards, the product is imported again without changes.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import TypeAlias

Change: TypeAlias = tuple[str, str, str]  # module, text to replace, replacement
ROOTS = ("rebaser", "rebaser_core", "rebaser_client", "tests.simulation", "tests.support.garbage")
KEPT = ("tests.simulation", "tests.simulation.planting")  # and all of `tests.simulation.bugs`


class Outgrown(Exception):  # noqa: N818 - what it is
    """The text that a bug replaces no longer exists in the product: adapt the bug."""


@contextmanager
def planted(changes: Sequence[Change]) -> Iterator[ModuleType]:
    """Yield the module `tests.simulation.story`, imported with a product that has these changes."""
    finder = _Finder(changes)
    _forget()
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module("tests.simulation.story")
    finally:
        sys.meta_path.remove(finder)
        _forget()


def _forget() -> None:
    for name in list(sys.modules):
        if name in KEPT or name.startswith("tests.simulation.bugs"):
            continue
        if any(name == root or name.startswith(f"{root}.") for root in ROOTS):
            del sys.modules[name]


class _Finder(MetaPathFinder):
    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        changes = [(old, new) for module, old, new in self._changes if module == fullname]
        spec = PathFinder.find_spec(fullname, path, target) if changes else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, changes)
            spec.cached = None
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, changes: Sequence[tuple[str, str]]) -> None:
        super().__init__(fullname, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for old, new in self._changes:
            if source.count(old) != 1:
                raise Outgrown(f"{fullname} has {source.count(old)} times {old!r}")
            source = source.replace(old, new)
        return compile(source, self.path, "exec")
