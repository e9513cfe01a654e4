"""Packs the code that the workers of a remote Spark need: the evaluator and the plug-ins of this server.

The archive is an artifact of the Spark session: Spark copies it to every executor, including those that start later.
Rebaser therefore need not be installed on executors, and servers of different releases can share a cluster. Packages
with native code cannot be sent and must be installed on executors (see `requirements`).

Invariant: the name of the archive contains the hash of its contents, and equal sources make equal archives.
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
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """An archive of code for workers. `name` is its file name, and `data` are its bytes.

    `modules` are the top-level packages and modules in the archive. `sent` are the distributions of the plug-ins in the
    archive. `not_sent` are the distributions of the plug-ins that are left out because they have native code.
    """

    name: str
    data: bytes
    modules: frozenset[str]
    sent: tuple[importlib.metadata.Distribution, ...]
    not_sent: tuple[importlib.metadata.Distribution, ...]

    def map_function(self) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """Return a function for `mapInArrow` that loads the code in the bundle and calls its `evaluate_batches`. The
        session must have received the bundle."""
        return _map_function(self.name, identity(), self.modules)


@cache
def bundle() -> Bundle:
    """Return the bundle of this process, with all the code that workers need and that can be sent."""
    files = {f"rebaser/{Path(rebaser.__file__).name}": Path(rebaser.__file__).read_bytes()}
    files |= _tree(Path(rebaser.__file__).parent / "dvu", "rebaser/dvu")
    files |= _tree(Path(rebaser_core.__file__).parent, "rebaser_core")
    sent: dict[str, importlib.metadata.Distribution] = {}
    not_sent: dict[str, importlib.metadata.Distribution] = {}
    for entry in plugins():
        plugin = _plugin_files(entry)
        native = any(name.endswith(_NATIVE) for name in plugin)
        if not native:
            files |= plugin
        if entry.dist:
            (not_sent if native else sent)[entry.dist.name] = entry.dist
    data = _archive(files)
    name = f"rebaser-{hashlib.sha256(data).hexdigest()[:24]}.zip"
    modules = frozenset(map(_top_level, files))
    return Bundle(name, data, modules, tuple(sent.values()), tuple(not_sent.values()))


def _plugin_files(entry: importlib.metadata.EntryPoint) -> dict[str, bytes]:
    """Return the contents of a plug-in's files, by path. The files include the metadata that registers the plug-in."""
    files: dict[str, bytes] = {}
    top = sys.modules[entry.module.partition(".")[0]]
    if entry.dist:
        for file in entry.dist.files or ():
            parts = file.parts
            if ".." not in parts and "__pycache__" not in parts and not parts[0].endswith((".dist-info", ".pth")):
                files[file.as_posix()] = Path(str(file.locate())).read_bytes()
    if not any(_top_level(name) == top.__name__ for name in files):  # an editable install lists no sources
        for folder in getattr(top, "__path__", ()):
            files |= _tree(Path(folder), top.__name__)
        if not hasattr(top, "__path__") and (source := getattr(top, "__file__", None)):
            files[Path(source).name] = Path(source).read_bytes()
    if entry.dist:
        info = f"{entry.dist.name.replace('-', '_')}-{entry.dist.version}.dist-info"
        for name in ("METADATA", "entry_points.txt"):
            files[f"{info}/{name}"] = (entry.dist.read_text(name) or "").encode()
    return files


def _top_level(path: str) -> str:
    """Return the top-level package or module that the file `path` belongs to."""
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
            archive.writestr(zipfile.ZipInfo(name, _FIXED_TIME), files[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _map_function(name: str, wanted: str, modules: frozenset[str]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the function that workers run. Workers need not have Rebaser, because a function that is defined inside
    another function is pickled by value.

    The function unpacks the archive once per machine and user. The folder is kept, so that Python and Numba find the
    files that they compiled earlier.
    """

    def loaded() -> bool:
        """Return whether this worker already has the code: in a folder on its path, or loaded by Spark's daemon."""
        if any(Path(path).name == Path(name).stem for path in sys.path):
            return True
        try:
            return bool(sys.modules["rebaser.dvu.functions.registry"].identity() == wanted)
        except Exception:  # noqa: BLE001 - Rebaser is not loaded, or is of another release
            return False

    def unpacked(archive: Path, root: Path) -> str:
        target = root / archive.stem
        if not target.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            fresh = tempfile.mkdtemp(dir=root)
            try:
                with zipfile.ZipFile(archive) as packed:
                    packed.extractall(fresh)
                Path(fresh).rename(target)
            except OSError:
                shutil.rmtree(fresh, ignore_errors=True)
                if not target.is_dir():  # otherwise, another worker has just unpacked the archive
                    raise
        return str(target)

    def map_batches(batches: Iterable[Any]) -> Iterator[Any]:
        if not loaded():
            from pyspark import SparkFiles  # noqa: PLC0415 - a server that has only the Spark client may lack it

            for module in [known for known in sys.modules if known.partition(".")[0] in modules]:
                del sys.modules[module]
            archive = Path(SparkFiles.get(name))
            try:
                caches = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
                folder = unpacked(archive, Path(caches, "rebaser"))
            except (OSError, RuntimeError):  # without a writable home folder, use the folder of the executor
                folder = unpacked(archive, archive.parent)
            sys.path.insert(0, folder)
        from rebaser.dvu.worker.evaluate import evaluate_batches  # noqa: PLC0415 - loaded from the archive

        return evaluate_batches(batches)

    return map_batches
