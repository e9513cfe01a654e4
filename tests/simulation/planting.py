"""Plants a bug: pieces of the product's source are replaced as it is imported, in this process alone.

Invariant: each piece stands exactly once in its module, so a bug that the product has outgrown is noticed; afterwards
the product is imported anew, as it is.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import TypeAlias

Change: TypeAlias = tuple[str, str, str]  # module, what stands there, what is to stand there
ROOTS = ("rebaser", "rebaser_core", "rebaser_client", "tests.simulation", "tests.support.garbage")
KEPT = ("tests.simulation", "tests.simulation.planting")  # and all of `tests.simulation.bugs`


class Outgrown(Exception):  # noqa: N818 - what it is
    """What a bug replaces is not there any more: plant it elsewhere."""


@contextmanager
def planted(changes: Sequence[Change]) -> Iterator[ModuleType]:
    """`tests.simulation.story`, around a product with these changes."""
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
