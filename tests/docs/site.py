"""Builds the documentation as a web site with Zensical: `uv run --group site python -m tests.docs.site FOLDER`.

The pages are written for GitHub. In the copy that is built, links to other files of the repository lead to GitHub, and
code blocks keep only their language, because Zensical does not recognize a block with the words of `test_blocks`.
A warning, such as a link without a target, fails the build. For language models, the site also has the pages as
Markdown, and `llms.txt`, which lists them (https://llmstxt.org).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.docs.pages import DOCS, ROOT

CONFIG = ROOT / "deploy" / "zensical.toml"
FILES = "https://github.com/rebaser/rebaser/blob/main"


def prepared(text: str, folder: Path) -> str:
    """Return the text of a page in `folder` as Zensical needs it."""

    def link(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        file = Path(os.path.normpath(folder / path))
        return match[0] if file.is_relative_to(DOCS) else f"]({FILES}/{file.relative_to(ROOT)}{mark}{anchor})"

    text = re.sub(r"\]\((\.\./[^)\s]+)\)", link, text)
    return re.sub(r"^(```+\w+) .*$", r"\1", text, flags=re.MULTILINE)


def navigation() -> str:
    """Return the navigation in TOML: the tables of the index, in their order."""
    sections = re.split(r"^## ", (DOCS / "README.md").read_text(), flags=re.MULTILINE)[1:]
    tables = [(text.partition("\n")[0], re.findall(r"^\| \[[^]]+\]\((\S+)\)", text, re.MULTILINE)) for text in sections]
    entries = ", ".join(f"{{ {json.dumps(title)} = {json.dumps(pages)} }}" for title, pages in tables)
    return f'nav = ["README.md", {entries}]'


def llms() -> str:
    """Return the text of `llms.txt`: what Rebaser is, and the tables of the index as lists of links."""
    project = tomllib.loads(CONFIG.read_text())["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    for line in (DOCS / "README.md").read_text().splitlines():
        if line.startswith("## "):
            lines += ["", line, ""]
        elif row := re.match(r"^\| \[[^]]+\]\((\S+)\) \| (.+) \|$", line):
            heading = (DOCS / row[1]).read_text().partition("\n# ")[2] or (DOCS / row[1]).read_text().removeprefix("# ")
            contents = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", row[2])
            lines.append(f"- [{heading.partition(chr(10))[0]}]({row[1]}): {contents}")
    return "\n".join(lines) + "\n"


def build(target: Path, docs: Path = DOCS) -> subprocess.CompletedProcess[str]:
    """Build the pages of `docs` into the folder `target`, and return how Zensical ended."""
    with tempfile.TemporaryDirectory() as folder:
        config = CONFIG.read_text().replace("[project]\n", f"[project]\n{navigation()}\n")
        (Path(folder) / CONFIG.name).write_text(config)
        copy = Path(folder) / "docs"
        shutil.copytree(docs, copy)
        for page in copy.rglob("*.md"):
            page.write_text(prepared(page.read_text(), DOCS / page.relative_to(copy).parent))
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            shutil.copytree(Path(folder) / "site", target, dirs_exist_ok=True)
            for page in copy.rglob("*.md"):
                shutil.copy(page, target / page.relative_to(copy))
            (target / "llms.txt").write_text(llms())
    return done


if __name__ == "__main__":
    done = build(Path(sys.argv[1]))
    sys.stderr.write(done.stdout + done.stderr)
    sys.exit(done.returncode)
