"""doltlite in this process, with a table that has a row for each value."""

import json
from pathlib import Path
from typing import Any

import doltlite  # must be imported before sqlite3, which it replaces

from tests.benchmarks.branch_peers.workload import Edits, text_of, texts

# isort: split
import sqlite3


class Doltlite:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "values.db"
        self._sql = sqlite3.connect(self._file, isolation_level=None)
        self.version = str(doltlite.__version__)
        self._found: list[Any] = []

    async def load(self, count: int) -> None:
        self._do("CREATE TABLE v (id INTEGER PRIMARY KEY, def TEXT)")
        self._do("BEGIN")
        self._sql.executemany("INSERT INTO v VALUES (?, ?)", texts(count))
        self._do("COMMIT")
        self._do("SELECT dolt_commit('-A', '-m', 'load')")

    async def branch(self, name: str) -> None:
        self._do("SELECT dolt_branch(?, 'main')", name)

    async def edit(self, name: str, edits: Edits) -> None:
        self._do("SELECT dolt_checkout(?)", name)
        self._do("BEGIN")
        changed = [(text_of(value), number) for number, value in edits.items()]
        self._sql.executemany("UPDATE v SET def = ? WHERE id = ?", changed)
        self._do("COMMIT")
        self._do("SELECT dolt_commit('-A', '-m', 'edit')")
        self._do("SELECT dolt_checkout('main')")

    async def diff(self, name: str) -> int:
        ((base,),) = self._do("SELECT dolt_merge_base('main', ?)", name)
        return len(self._do("SELECT to_id, from_def, to_def FROM dolt_diff_v(?, ?)", base, name))

    async def merge(self, name: str) -> int:
        self._do("BEGIN")
        try:
            self._do("SELECT dolt_merge(?)", name)
            self._found = self._do("SELECT * FROM dolt_conflicts")
        except sqlite3.OperationalError:
            self._found = self._do("SELECT * FROM dolt_conflicts")
        if self._found:
            return int(self._found[0][1])
        self._do("COMMIT")
        return 0

    async def conflicts(self, name: str) -> int:
        del name
        return len(self._do("SELECT * FROM dolt_conflicts_v"))

    async def give_up(self) -> None:
        """Abort a merge that had conflicts."""
        self._do("SELECT dolt_merge('--abort')")
        if self._sql.in_transaction:
            self._do("ROLLBACK")

    async def revert(self) -> None:
        self._do("SELECT dolt_revert('HEAD')")

    async def position(self) -> Any:
        ((commit,),) = self._do("SELECT dolt_hashof('HEAD')")
        return commit

    async def read(self, number: int, at: Any) -> int:
        ((text,),) = self._do("SELECT def FROM dolt_at_v(?) WHERE id = ?", at, number)
        return int(json.loads(text)["value"])

    async def blame(self, number: int) -> object:
        return self._do("SELECT * FROM dolt_blame_v WHERE id = ?", number)

    async def log(self, number: int) -> int:
        return len(self._do("SELECT DISTINCT to_commit FROM dolt_diff_v WHERE to_id = ?", number))

    async def collect(self) -> None:
        self._do("SELECT dolt_gc()")

    async def size(self) -> int:
        return sum(file.stat().st_size for file in self._file.parent.iterdir())

    def _do(self, statement: str, *values: object) -> list[Any]:
        return self._sql.execute(statement, values).fetchall()
