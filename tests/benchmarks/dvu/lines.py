"""The results, one line of JSON each, written as they are measured. A cell that the file has is not measured again."""

import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Lines:
    """The lines that were measured. `path` is their file (None: no file). No cell is begun after `until` (seconds of
    `time.monotonic`)."""

    def __init__(self, path: Path | None, show: Callable[[Line], None], until: float = float("inf")) -> None:
        self.all: list[Line] = []
        self._path = path
        self._show = show
        self._until = until
        if path is not None and path.exists():
            self.all = [json.loads(line) for line in path.read_text().splitlines()]
        self._known = {one["cell"] for one in self.all}

    def __contains__(self, cell: str) -> bool:
        """Return whether a cell was measured."""
        return cell in self._known

    def wants(self, cell: str) -> bool:
        """Return whether a cell is to be measured now."""
        return cell not in self._known and time.monotonic() < self._until

    async def measure(self, cell: str, measured: Callable[[], Awaitable[Iterable[Line]]]) -> None:
        """Measure a cell and keep its lines, unless it was measured. A failure is reported, and the cell is tried again
        in the next run."""
        if not self.wants(cell):
            return
        try:
            found = [{"cell": cell, **one} for one in await measured()]
        except Exception as error:  # noqa: BLE001 - hours of others must not be lost
            print(f"{cell}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            return
        self._known.add(cell)
        self.add(found)

    def add(self, found: list[Line]) -> None:
        """Keep the lines of a cell."""
        self.all += found
        self._known |= {one["cell"] for one in found}
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.writelines(json.dumps(one) + "\n" for one in found)
        for one in found:
            self._show(one)
