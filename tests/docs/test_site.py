"""The web site of the documentation builds without warnings, and a page without a target fails the build."""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, anchors
from tests.docs.site import build, llms, prepared

needs_zensical = pytest.mark.skipif(find_spec("zensical") is None, reason="Zensical is not installed: --group site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@needs_zensical
def test_every_page_and_heading_is_on_the_site(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS)
        html = site / (path.parent if path.name == "README.md" else path.with_suffix("")) / "index.html"
        shown = html.read_text()
        if path.parts[0] not in ("decisions", "reference"):
            assert [anchor for anchor in anchors(page) if f'id="{anchor}"' not in shown] == [], path


@needs_zensical
def test_pages_are_listed_in_the_order_of_the_index_and_name_no_fonts_or_scripts_elsewhere(site: Path) -> None:
    shown = (site / "limits" / "index.html").read_text()
    places = [
        shown.index(f'href="{link}"') for link in ("../concepts/", "../testing/", "../accounts/", "../changelog/")
    ]
    assert places == sorted(places)
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="?https?:[^>]*', shown) == []


@needs_zensical
def test_the_site_has_what_its_list_for_language_models_names(site: Path) -> None:
    links = re.findall(r"\]\((.+?)\)", (site / "llms.txt").read_text())
    assert [link for link in links if not (site / link).is_file()] == []


def test_the_list_for_language_models_has_every_page_with_its_title() -> None:
    text = llms()
    assert text.startswith("# Rebaser\n\n> Keeps branches ")
    assert "\n- [The Python client](client.md): the Python client: opening" in text
    assert "## Reference" in text
    listed = set(re.findall(r"^- \[.+?\]\((.+?)\): .", text, re.MULTILINE))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages - listed == {"README.md"} | {page for page in pages - listed if page.startswith("decisions/")}


@needs_zensical
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs" / "limits.md").open("a") as page:
        page.write("\n[nowhere](no-such-page.md)\n")
    assert build(tmp_path / "site", tmp_path / "docs").returncode != 0
    assert not (tmp_path / "site").exists()


def test_what_is_written_for_github_is_rewritten() -> None:
    page = "[a](../../README.md#x) [b](../concepts.md)\n```bash not run: why\nls\n```\n"
    readme = "https://github.com/rebaser/rebaser/blob/main/deploy/README.md#x"
    assert prepared(page, DOCS / "internals") == f"[a]({readme}) [b](../concepts.md)\n```bash\nls\n```\n"
