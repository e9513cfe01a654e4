"""Tests the scripts of the console: their pure parts in node, and the rules for all of them."""

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rebaser.console.files import FOLDER, read_files

SCRIPTS = sorted((FOLDER / "js").rglob("*.js"))
PACKED, FIRST, MODULE = 68 * 1024, 34 * 1024, 400
SMALL = 1400  # bytes; smaller files are sent as they are


def test_the_pure_parts() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    file = Path(__file__).parent / "pure_test.mjs"
    done = subprocess.run([node, "--test", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types() -> None:
    """What TypeScript finds in the scripts, though they have no annotations: misspelled names and fields."""
    beside = Path(sys.prefix) / "typescript" / "node_modules" / ".bin" / "tsc"  # where `.ci/run` installs it
    tsc = str(beside) if beside.exists() else shutil.which("tsc")
    if tsc is None:
        pytest.skip("no TypeScript: npm install --prefix .venv/typescript, with package.json of this folder there")
    done = subprocess.run([tsc, "-p", str(Path(__file__).parent)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_that_a_browser_loads_is_small() -> None:
    """Each file is compressed by itself. All pages together take `PACKED` bytes, and the first one at most `FIRST`."""
    sent = {
        path: len(gzip.compress(file.content)) if len(file.content) >= SMALL else len(file.content)
        for path, file in read_files().items()
    }
    pages = sum(size for path, size in sent.items() if path.startswith("js/pages/"))
    largest = max(size for path, size in sent.items() if path.startswith("js/pages/"))
    assert sum(sent.values()) <= PACKED
    assert sum(sent.values()) - pages + largest <= FIRST
    for script in SCRIPTS:
        assert len(script.read_text().splitlines()) <= MODULE, script.name


def test_a_browser_gets_each_line_without_its_indentation_and_no_comments() -> None:
    served = read_files()
    for script in SCRIPTS:
        source, lines = script.read_text(), served[script.relative_to(FOLDER).as_posix()].content.decode().split("\n")
        wanted = ["" if line.strip().startswith("// ") else line.lstrip(" ") for line in source.split("\n")]
        assert lines == wanted, script.name
    assert b"/*" not in served["style.css"].content
    assert b"<body>\n<div" in served["index.html"].content


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_of_data(script: Path) -> None:
    text = script.read_text()
    found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML", text)
    assert found == (["innerHTML"] if script.name == "html.js" else []), "only html.js does, of its own literal parts"
    assert re.findall(r"""from ["'](?!\.)""", text) == [], "it imports nothing of others"
    assert "https://" not in re.sub(r"https\?:", "", text)


def test_each_state_has_a_word_and_a_picture() -> None:
    parts = (FOLDER / "js" / "parts.js").read_text()
    pictures = set(re.findall(r"^  (\w+): \"M", parts, re.MULTILINE))
    states = re.findall(r"^  (\w+): \[\"(\w+)\", \"(\w+)\"\],$", parts, re.MULTILINE)
    assert {picture for _, _, picture in states} <= pictures
    assert {"unreadable", "waiting", "updating", "due", "busy", "owned"} <= {state for state, _, _ in states}
