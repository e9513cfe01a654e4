"""What a Spark elsewhere is sent so that its workers run the code of this server: the evaluator, and plug-ins.

The archive is an artifact of the session: Spark brings it to every executor, those that come later included. So nothing
of ours need be installed there, and servers of two releases can share a cluster. What has native code cannot be sent,
and has to be there (see `survey`).
Invariant: the archive's name is the hash of what it holds; equal sources make equal archives.
"""

import hashlib
import importlib.metadata
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import rebaser
import rebaser_core
from rebaser.dvu.functions.registry import identity, plugins

_NATIVE = (*EXTENSION_SUFFIXES, ".so", ".pyd", ".dll", ".dylib")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """`modules` are its top-level packages and modules; plug-ins whose distribution is in it are `sent`, those that
    cannot be are `left`."""

    name: str
    data: bytes
    modules: frozenset[str]
    sent: tuple[importlib.metadata.Distribution, ...]
    left: tuple[importlib.metadata.Distribution, ...]

    def evaluator(self) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """`evaluate_batches` of the code in the bundle, for a session that was sent it."""
        return _evaluator(self.name, identity(), self.modules)


@cache
def bundle() -> Bundle:
    """All that workers need of this process, and can be sent."""
    files = {f"rebaser/{Path(rebaser.__file__).name}": Path(rebaser.__file__).read_bytes()}
    files |= _tree(Path(rebaser.__file__).parent / "dvu", "rebaser/dvu")
    files |= _tree(Path(rebaser_core.__file__).parent, "rebaser_core")
    sent: dict[str, importlib.metadata.Distribution] = {}
    left: dict[str, importlib.metadata.Distribution] = {}
    for entry in plugins():
        found = _plugin(entry)
        native = any(name.endswith(_NATIVE) for name in found)
        if not native:
            files |= found
        if entry.dist:
            (left if native else sent)[entry.dist.name] = entry.dist
    data = _archive(files)
    name = f"rebaser-{hashlib.sha256(data).hexdigest()[:24]}.zip"
    modules = frozenset(map(_module, files))
    return Bundle(name, data, modules, tuple(sent.values()), tuple(left.values()))


def _plugin(entry: importlib.metadata.EntryPoint) -> dict[str, bytes]:
    """The files of a plug-in that was loaded; of its distribution, what makes it a plug-in."""
    found: dict[str, bytes] = {}
    top = sys.modules[entry.module.partition(".")[0]]
    if entry.dist:
        for file in entry.dist.files or ():
            parts = file.parts
            if ".." not in parts and "__pycache__" not in parts and not parts[0].endswith((".dist-info", ".pth")):
                found[file.as_posix()] = Path(str(file.locate())).read_bytes()
    if not any(_module(name) == top.__name__ for name in found):  # an editable install lists no sources
        for folder in getattr(top, "__path__", ()):
            found |= _tree(Path(folder), top.__name__)
        if not hasattr(top, "__path__") and (source := getattr(top, "__file__", None)):
            found[Path(source).name] = Path(source).read_bytes()
    if entry.dist:
        info = f"{entry.dist.name.replace('-', '_')}-{entry.dist.version}.dist-info"
        for name in ("METADATA", "entry_points.txt"):
            found[f"{info}/{name}"] = (entry.dist.read_text(name) or "").encode()
    return found


def _module(path: str) -> str:
    """The top-level package or module that a file is of."""
    return path.partition("/")[0].partition(".")[0]


def _tree(folder: Path, name: str) -> dict[str, bytes]:
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), files[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _evaluator(name: str, wanted: str, modules: frozenset[str]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function that a worker without any code of ours can run: one made inside another is pickled by value.

    It unpacks the archive once for a machine and user, at a place that stays: only there do Python and Numba find again
    what they compiled.
    """

    def loaded() -> bool:
        """This very code is what Spark's daemon loaded, or is on the path by now."""
        if any(Path(path).name == Path(name).stem for path in sys.path):
            return True
        try:
            return bool(sys.modules["rebaser.dvu.functions.registry"].identity() == wanted)
        except Exception:  # noqa: BLE001 - nothing is loaded, or another release
            return False

    def unpacked(archive: Path, root: Path) -> str:
        place = root / archive.stem
        if not place.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            fresh = tempfile.mkdtemp(dir=root)
            try:
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(fresh)
                Path(fresh).rename(place)
            except OSError:
                shutil.rmtree(fresh, ignore_errors=True)
                if not place.is_dir():  # else another worker was faster
                    raise
        return str(place)

    def evaluate(batches: Iterable[Any]) -> Iterator[Any]:
        if not loaded():
            from pyspark import SparkFiles  # noqa: PLC0415 - a worker has it; a server's client alone need not

            for module in [one for one in sys.modules if one.partition(".")[0] in modules]:
                del sys.modules[module]
            archive = Path(SparkFiles.get(name))
            try:
                caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
                place = unpacked(archive, Path(caches, "rebaser"))
            except (OSError, RuntimeError):  # no home, or none to write to: the executor's own folder
                place = unpacked(archive, archive.parent)
            sys.path.insert(0, place)
        from rebaser.dvu.worker.evaluate import evaluate_batches  # noqa: PLC0415 - the one that came with the archive

        return evaluate_batches(batches)

    return evaluate
