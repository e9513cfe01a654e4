"""Structures that a worker has: in memory, and in a folder that the workers of a machine share.

Invariant: what is found under an address has that hash. Whatever is wrong with the folder costs time only: the owner
sends the structure again.
"""

import contextlib
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa

from rebaser.dvu.wire.structure import Structure
from rebaser.dvu.worker.blob_fetch import open_store
from rebaser_core.blob_address import address_of
from rebaser_core.errors import DvuError

FOLDER_VARIABLE = (
    "REBASER_STRUCTURES"  # environment: the folder; default: one of this user's in the system's temporary folder
)
_IN_MEMORY = 4  # structures a worker keeps mapped
_FOLDER_BYTES = 4 * 1024**3


class StructureCache:
    """Structures by address, in `folder` (None: in memory only)."""

    def __init__(self, cache_folder: Path | None, folder_bytes: int = _FOLDER_BYTES) -> None:
        self._folder = cache_folder
        self._folder_bytes = folder_bytes
        self._known: OrderedDict[str, Structure] = OrderedDict()

    def get(self, address: str) -> Structure | None:
        """The structure at `address`; None if it is not here."""
        found = self._known.pop(address, None) or self._read(address)
        if found is not None:
            self._keep(found)
        return found

    def put(self, address: str, data: bytes) -> Structure:
        """Take the structure in. Raises `DvuError` if `address` is not its hash."""
        if address_of(data) != address:
            raise DvuError("a structure has another hash than its packet says")
        self.write(address, data)
        found = self.get(address)
        if found is None:  # no folder, or a full disk
            found = Structure.decode(data, address)
            self._keep(found)
        return found

    def _keep(self, structure: Structure) -> None:
        self._known[structure.address] = structure
        while len(self._known) > _IN_MEMORY:
            self._known.popitem(last=False)

    def _read(self, address: str) -> Structure | None:
        if self._folder is None:
            return None
        path = self._folder / address
        with contextlib.suppress(OSError, pa.ArrowException, DvuError):
            with pa.memory_map(str(path)) as file:
                data = file.read_buffer()
            if address_of(data) == address:
                os.utime(path)
                return Structure.decode(data, address)
            path.unlink()
        return None

    def fetch(self, address: str, url: str) -> Structure | None:
        """Take the structure in from the blob store at `url`; None if it cannot be had there."""
        try:
            return self.put(address, open_store(url)(address))
        except DvuError:
            return None

    def write(self, address: str, data: bytes) -> None:
        """Put the structure into the folder, for all who look there."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            unfinished = self._folder / f"{address}.{os.getpid()}"
            try:
                unfinished.write_bytes(data)
                unfinished.replace(self._folder / address)
            finally:
                unfinished.unlink(missing_ok=True)
            self._prune()

    def _prune(self) -> None:
        """Delete what was not used for longest; a worker that has it mapped keeps it."""
        assert self._folder is not None  # noqa: S101 - `write` looked
        left = self._folder_bytes
        for _, size, path in sorted(_files(self._folder), reverse=True):
            left -= size
            if left < 0:
                path.unlink(missing_ok=True)


def _files(cache_folder: Path) -> Iterator[tuple[float, int, Path]]:
    """When each was used, how large it is, and where."""
    for path in cache_folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            known = path.stat()
            yield known.st_mtime, known.st_size, path


@cache
def process_cache() -> StructureCache:
    """Those of this process."""
    return StructureCache(cache_folder())


def cache_folder() -> Path | None:
    """Where to keep them: a folder that is this user's alone, or None."""
    with contextlib.suppress(OSError):
        own = os.geteuid() if hasattr(os, "geteuid") else 0
        found = Path(os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir(), f"rebaser-structures-{own}"))
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = found.lstat()
        if known.st_uid == own and not known.st_mode & 0o022 and not found.is_symlink():
            return found
    return None
