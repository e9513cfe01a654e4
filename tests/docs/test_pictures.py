"""The tutorial can be followed in a real browser, and its pictures are complete and small."""

import re
from pathlib import Path

import anyio

from rebaser.testing import local_rebaser
from tests.docs.pages import DOCS, GUIDE
from tests.docs.pictures import PICTURES, take_all
from tests.support.browser import need_browser

LARGEST, ALL = 100_000, 1_000_000  # bytes of a picture, and of all together
IMAGE = re.compile(r"!\[[^]]+\]\(([^)#\s]+)#?([^)]*)\)")


def shown() -> list[tuple[Path, str]]:
    """The files of all pictures on pages, and the themes in which GitHub and the site show them."""
    found = [(page, image) for page in GUIDE for image in IMAGE.findall(page.read_text())]
    return [((page.parent / path).resolve(), theme) for page, (path, theme) in found]


def test_each_picture_is_shown_in_the_theme_in_which_it_was_taken() -> None:
    files = {path: theme for path, theme in shown() if path.parent == PICTURES}
    assert set(files) == set(PICTURES.iterdir()) != set()
    for path, theme in files.items():
        assert theme == f"gh-{path.stem.rpartition('-')[2]}-mode-only", path
        other = {"light": "dark", "dark": "light"}[path.stem.rpartition("-")[2]]
        assert path.with_stem(f"{path.stem.rpartition('-')[0]}-{other}") in files


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in DOCS.rglob("*") if path.suffix in (".webp", ".png", ".svg")}
    assert {name: size for name, size in sizes.items() if size >= LARGEST} == {}
    assert sum(sizes.values()) < ALL


def test_the_tutorial_can_be_followed(tmp_path: Path) -> None:
    need_browser()
    with local_rebaser(quiescent_period=2) as installation:
        anyio.run(take_all, installation.url, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in PICTURES.iterdir()}
