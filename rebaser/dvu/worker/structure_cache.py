"""Caches structures in the memory of a worker, and in a folder that the workers of a machine share.

Invariant: a structure that the cache returns has the hash in its address. If the folder cannot be used, only time is
lost, because the owner sends the structure again.
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
from rebaser_core.blobs.address import address_of
from rebaser_core.errors import DvuError

# The environment variable with the path of the folder. The default is a folder of this user in the system's temporary
# folder.
FOLDER_VARIABLE = "REBASER_STRUCTURES"
_IN_MEMORY = 4  # maximum number of structures that a worker keeps mapped
_FOLDER_BYTES = 4 * 1024**3  # maximum bytes of all structures in the folder


class StructureCache:
    """A cache of structures by address: in memory and, unless `folder` is None, in the folder, which is kept below
    `folder_bytes` bytes."""

    def __init__(self, folder: Path | None, folder_bytes: int = _FOLDER_BYTES) -> None:
        self._folder = folder
        self._folder_bytes = folder_bytes
        self._in_memory: OrderedDict[str, Structure] = OrderedDict()  # least recently used first

    def get(self, address: str) -> Structure | None:
        """Return the structure at `address`; None if neither memory nor the folder has it."""
        structure = self._in_memory.pop(address, None) or self._read(address)
        if structure is not None:
            self._remember(structure)
        return structure

    def put(self, address: str, data: bytes) -> Structure:
        """Decode the structure in `data`, add it to the cache, and return it. Raise `DvuError` if `data` does not have
        the hash in `address`."""
        if address_of(data) != address:
            raise DvuError("a structure does not have the hash in the address that its packet contains")
        self.write(address, data)
        structure = self.get(address)
        if structure is None:  # the folder does not exist, or the disk is full
            structure = Structure.decode(data, address)
            self._remember(structure)
        return structure

    def _remember(self, structure: Structure) -> None:
        self._in_memory[structure.address] = structure
        while len(self._in_memory) > _IN_MEMORY:
            self._in_memory.popitem(last=False)

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
        """Read the structure from the blob store at `url`, and add it to the cache. Return None if it cannot be
        read."""
        try:
            return self.put(address, open_store(url)(address))
        except DvuError:
            return None

    def write(self, address: str, data: bytes) -> None:
        """Write the structure into the folder, for all workers of this machine. Ignore file system errors."""
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
        """Delete the least recently used structures from the folder until it is below its limit. Workers can still read
        structures that they have mapped."""
        assert self._folder is not None  # noqa: S101 - checked by `write`
        room = self._folder_bytes
        for _, size, path in sorted(_files(self._folder), reverse=True):
            room -= size
            if room < 0:
                path.unlink(missing_ok=True)


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield the time of last use (Unix seconds), the size in bytes, and the path of each file in `folder`."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path


@cache
def process_cache() -> StructureCache:
    """Return the cache of this process."""
    return StructureCache(cache_folder())


def cache_folder() -> Path | None:
    """Return the folder for structures. Return None if it does not belong to this user, or if another user can write to
    it."""
    with contextlib.suppress(OSError):
        user = os.geteuid() if hasattr(os, "geteuid") else 0
        path = Path(os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir(), f"rebaser-structures-{user}"))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
        if status.st_uid == user and not status.st_mode & 0o022 and not path.is_symlink():
            return path
    return None
