"""icechunk with one array of numbers in chunks of 1,000, on the local file system.

icechunk cannot merge branches: a session can be rebased only on commits of its own branch, and two edits of one chunk
are a conflict. It cannot revert a commit, and records no author of a single value. So only the other steps are
measured.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import icechunk
import zarr

from tests.benchmarks.branch_peers.workload import Edits

CHUNK = 1000


class Icechunk:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "repository"
        icechunk.set_logs_filter("error")
        self._repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(self._folder)))
        self.version = str(icechunk.__version__)

    async def load(self, count: int) -> None:
        session = self._repository.writable_session("main")
        array = zarr.create_group(session.store).create_array("v", shape=(count,), chunks=(CHUNK,), dtype="i8")
        array[:] = range(count)
        session.commit("load")

    async def branch(self, name: str) -> None:
        self._repository.create_branch(name, self._repository.lookup_branch("main"))

    async def edit(self, name: str, edits: Edits) -> None:
        session = self._repository.writable_session(name)
        numbers = sorted(edits)
        zarr.open_group(session.store)["v"].set_coordinate_selection(numbers, [edits[one] for one in numbers])
        session.commit("edit")

    async def diff(self, name: str) -> int:
        """Read both states of the changed chunks, which icechunk names, and count the values that differ."""
        base = self._base(name)
        changed = self._repository.diff(from_snapshot_id=base, to_branch=name).updated_chunks["/v"]
        before, after = (self._array(at) for at in (base, self._repository.lookup_branch(name)))
        spans = [slice(chunk * CHUNK, (chunk + 1) * CHUNK) for (chunk,) in changed]
        return sum(int((before[span] != after[span]).sum()) for span in spans)

    def _base(self, name: str) -> str:
        main = {one.id for one in self._repository.ancestry(branch="main")}
        return next(str(one.id) for one in self._repository.ancestry(branch=name) if one.id in main)

    def _array(self, at: str) -> Any:
        return zarr.open_group(self._repository.readonly_session(snapshot_id=at).store, mode="r")["v"]

    async def position(self) -> Any:
        return self._repository.lookup_branch("main")

    async def read(self, number: int, at: Any) -> int:
        return int(self._array(at)[number])

    async def collect(self) -> None:
        self._repository.garbage_collect(datetime.now(UTC))

    async def size(self) -> int:
        return sum(file.stat().st_size for file in self._folder.rglob("*") if file.is_file())
