"""The cells of the data source's tables, without Spark."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from rebaser_client.log.branches import BranchInfo
from rebaser_client.spark import branch_tables, tables
from rebaser_core.commit import Commit, Kind
from rebaser_core.ids import ChangeSetKey
from rebaser_core.updates import Derive, Set, Unset
from tests.support.graphs import Book

KEY = ChangeSetKey("shop", "main")
EMPTY = pa.schema([])


@pytest.fixture(autouse=True)
def as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make batches lists of rows."""

    def batches(rows: Iterable[Any], *_: object) -> Iterator[Any]:
        yield list(rows)

    monkeypatch.setattr(tables, "batches", batches)
    monkeypatch.setattr(branch_tables, "batches", batches)


def table(columns: str, found: Iterator[Any]) -> list[dict[str, Any]]:
    """Return rows by the names of the columns before the first nested one."""
    names = [column.split()[0] for column in columns.partition(" ARRAY<")[0].split(", ")]
    [rows] = found
    return [dict(zip(names, row, strict=False)) for row in rows]


def test_an_unset_value_has_no_content_and_null_has() -> None:
    state = Book([Set("none", None), Unset("unset"), Set("a", 1)]).state
    found = {row["id"]: row for row in table(tables.VALUES, tables.value_batches(KEY, state, EMPTY))}
    assert [found["unset"][name] for name in ("state", "kind", "json")] == ["unset", None, None]
    assert [found["none"][name] for name in ("state", "kind", "json")] == ["ok", "null", "null"]
    assert [found["a"][name] for name in ("kind", "number", "json")] == ["integer", 1.0, "1"]


def test_a_commit_that_owes_no_update_covers_itself() -> None:
    commits = [Commit("c", 0, Kind.REBASE, 0, "owner", None, covers, sequence=7) for covers in (None, 0, 5)]
    found = table(tables.COMMITS, tables.commit_batches([(KEY, commit) for commit in commits], EMPTY))
    assert [row["covers"] for row in found] == [7, 0, 5]


def test_what_a_commit_replaced_is_told_without_errors() -> None:
    stood = (Set("a", "x"), Derive("b", "sum", {"of": "a"}))
    commit = Commit("c", 0, Kind.REBASE, 0, "owner", None, None, delta=(Set("a", 2),), before=stood, sequence=7)
    [[row]] = tables.commit_batches([(KEY, commit)], EMPTY)
    before = [("set", "a", None, "text", None, "x", '"x"'), ("derive", "b", "sum", None, None, None, None)]
    assert before in [list(cell) for cell in row if isinstance(cell, list)]


def test_a_branch_that_is_not_behind_says_so_and_what_is_no_branch_says_nothing() -> None:
    time = datetime(2026, 1, 31, tzinfo=UTC)
    infos = [
        BranchInfo("shop", "main", 3, time),
        BranchInfo("shop", "level", 4, time, target="main"),
        BranchInfo("shop", "late", 5, time, target="main", behind=True),
    ]
    found = table(branch_tables.CHANGE_SETS, branch_tables.change_set_batches(infos, EMPTY))
    assert [row["behind"] for row in found] == [None, False, True]
