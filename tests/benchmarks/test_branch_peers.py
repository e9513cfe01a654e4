"""The benchmark of branches: every side does what is asked, and the tables show it. Times are only printed."""

import pytest

from tests.benchmarks.branch_peers import SIDES, missing
from tests.benchmarks.branch_peers.__main__ import arguments, lines, table
from tests.benchmarks.branch_peers.workload import Case

pytestmark = pytest.mark.bench


def test_only_shared_edits_meet() -> None:
    ours, theirs = Case(1000, 100, 0).both(0)
    assert (len(ours), len(theirs), ours.keys() & theirs.keys()) == (100, 100, set())
    ours, theirs = Case(1000, 100, 7).both(3)
    assert len(ours.keys() & theirs.keys()) == 7
    assert all(ours[one] != theirs[one] for one in ours.keys() & theirs.keys())
    assert not Case(1000, 1000, 0).fits


@pytest.mark.parametrize("side", SIDES)
def test_a_side_does_what_is_asked(side: str) -> None:
    """Each side runs in a process of its own, because doltlite replaces sqlite3."""
    if why := missing(side):
        pytest.skip(why)
    given = ["--values", "1000", "--edits", "1", "10", "10000", "--runs", "1", "--sides", side]
    found = list(lines(arguments(given)))
    assert [line["why"] for line in found if "why" in line] == []
    assert {line["side"] for line in found} == {side}
    done = {line["what"] for line in found}
    assert {"load", "branch", "read as of", "100 branches", "commit", "diff"} <= done
    assert {line["edits"] for line in found if "edits" in line} == {1, 10}
    if side != "icechunk":
        assert {"merge", "find conflicts", "list conflicts", "revert", "blame", "log of one"} <= done


def test_a_table_has_figures_and_ratios() -> None:
    found = [
        {"side": "rebaser", "values": 1000, "what": "branch", "ms": 3.0},
        {"side": "git", "values": 1000, "what": "branch", "ms": 1.5},
        {"side": "rebaser", "values": 1000, "edits": 1, "shared": 0, "what": "diff", "ms": 3.0},
        {"side": "doltlite", "values": 1000, "why": "not installed"},
    ]
    missed, _, branch, diff = table(found, SIDES)
    assert missed == "doltlite, 1,000 values: not installed"
    assert branch.split() == ["1,000", "branch", "3.00", "1.50", "(2x)"]
    assert diff.split() == ["1,000", "1", "0", "diff", "3.00"]


@pytest.mark.long
def test_figures_of_all_sides() -> None:
    options = arguments(["--values", "1000", "--edits", "1", "100"])
    print("\n".join(table(lines(options), options.sides)))
