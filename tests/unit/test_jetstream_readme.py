"""The tables in the README of the JetStream layer name existing modules, operations and tests."""

import re
from pathlib import Path

import pytest

from rebaser_client import jetstream
from rebaser_client.jetstream import names

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "rebaser_client" / "jetstream"
TEXT = (FOLDER / "README.md").read_text()
ALIASES = dict(re.findall(r"`(\w+)` is\s+`([\w/]+\.py)`", TEXT))
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| rule |", "| of |"))
]


def test_there_are_tables() -> None:
    assert len(ROWS) > 90
    assert len(ALIASES) == 28


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_names_tests_that_exist(row: list[str]) -> None:
    for part in row[-1].split("; "):
        alias, _, tests = part.partition(": ")
        source = (ROOT / "tests" / ALIASES[alias.strip("`")]).read_text()
        for test in tests.split(", "):
            assert f"def test_{test}(" in source, f"{ALIASES[alias.strip('`')]} has no test_{test}"


@pytest.mark.parametrize("row", [row for row in ROWS if len(row) == 3], ids=lambda row: row[0][:40])
def test_a_rule_names_modules_that_have_what_it_says(row: list[str]) -> None:
    words = re.findall(r"`([\w./]+)`", row[1])
    sources = [
        next(place / word for place in (FOLDER, FOLDER.parent, ROOT) if (place / word).is_file()).read_text()
        for word in words
        if word.endswith(".py")
    ]
    for word in words:
        assert word.endswith(".py") or any(re.search(rf"\b{word}\b", source) for source in sources), word


@pytest.mark.parametrize("row", [row for row in ROWS if len(row) == 4], ids=lambda row: row[1][:40])
def test_an_operation_is_there(row: list[str]) -> None:
    operations = re.findall(r"`(\w+)\.(\w+)`", row[2])
    assert operations
    for kind, operation in operations:
        assert callable(getattr(names if kind == "names" else getattr(jetstream, kind), operation))
