"""A long table looks like a short one on a terminal."""

import io
import re
import sys

import pytest

from rebaser.cli.output import console
from tests.support.draws import drawing

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CELLS = ["", "a", "cart/1/price", "日本", "two\nlines", "\x1b[2J", "wide " * 4, "é"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, laid_out: int, rows: list[tuple[str | tuple[str, ...], ...]]) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(console, "LAID_OUT", laid_out)
        terminal = Terminal()
        patch.setattr(sys, "stdout", terminal)
        console.out.cache_clear()
        console.table(("id", "before", "after"), rows, right=(1,), styles={1: "red"})
    console.out.cache_clear()
    return terminal.getvalue()


@pytest.mark.parametrize("width", ["40", "80"])
@pytest.mark.parametrize("several_lines", [False, True])
def test_a_long_table_looks_as_a_short_one(monkeypatch: pytest.MonkeyPatch, width: str, several_lines: bool) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    rng = drawing("tables")
    for _ in range(20):
        rows: list[tuple[str | tuple[str, ...], ...]] = [tuple(rng.choices(CELLS, k=3)) for _ in range(9)]
        if several_lines:
            rows.append((("one", "two"), "x", "y"))
        expected, found = (shown(monkeypatch, laid_out, rows) for laid_out in (100, 3))
        assert COLOUR.sub("", found) == COLOUR.sub("", expected)
        assert ("\x1b[31m" in found.splitlines()[-2]) == ("\x1b[31m" in expected.splitlines()[-2])


def test_rich_lays_out_the_first_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows: list[tuple[str | tuple[str, ...], ...]] = [("a", "1", "2")] * 50
    lines = shown(monkeypatch, 5, rows).splitlines()
    assert len(lines) == 50 + 4
    assert "\x1b[31m \x1b[0m" in lines[4]
    assert "\x1b[31m \x1b[0m" not in lines[-2]
