"""Reads the pages of the documentation: their code blocks, links, headings and tables."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "deploy" / "docs"
GUIDE = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
MAPS = [
    ROOT / "deploy" / "README.md",
    *sorted(path for top in ROOT.glob("rebaser*") for path in top.rglob("README.md")),
]
PAGES = [*GUIDE, *MAPS, *sorted((ROOT / ".github").glob("*.md"))]

_FENCE = re.compile(r"^(```+)(.*)$")
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced code block. `language` is the first word after the fence, `tag` the rest of that line; `line` counts
    from 1."""

    page: Path
    line: int
    language: str
    tag: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def split(page: Path) -> tuple[str, list[Block]]:
    """Return the prose of a page without its code blocks, and the code blocks."""
    prose: list[str] = []
    blocks: list[Block] = []
    fence, start, info, inside = "", 0, "", list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = _FENCE.match(line)
        if not fence and mark:
            fence, start, info, inside = mark[1], number, mark[2].strip(), []
        elif fence and line.strip() == fence:
            language, _, tag = info.partition(" ")
            blocks.append(Block(page, start, language, tag, "\n".join(inside) + "\n"))
            fence = ""
        else:
            (inside if fence else prose).append(line)
    assert not fence, f"{page}:{start}: the code block does not end"
    return "\n".join(prose), blocks


def links(page: Path) -> Iterator[str]:
    """Yield the targets of all links of a page outside of code."""
    prose = re.sub(r"`[^`\n]*`", "`code`", split(page)[0])
    return (match[1] for match in _LINK.finditer(prose))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", split(page)[0], re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (anchor := words if not number else f"{words}-{number}") in found:
            number += 1
        found.add(anchor)
    return found


def map_of(page: Path) -> list[str]:
    """Return the names in the first column of the tables that list the contents of a folder."""
    names: list[str] = []
    listing = False
    for line in split(page)[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            listing = False
        elif cells[0] in ("module", "name", "room"):
            listing = True
        elif listing:
            names += re.findall(r"`([^`]+)`", cells[0])
    return names
