"""The links of all pages have targets, named files and functions exist, and the README of a folder lists its
contents."""

import importlib.util
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer.main

from rebaser.change_set import lifecycle
from rebaser.cli.app import app
from rebaser.settings import Settings
from rebaser_client import RebaserClient
from rebaser_core.limits import Limits
from tests.docs.pages import DOCS, GUIDE, MAPS, PAGES, ROOT, anchors, links, map_of, split

TOPS = ("rebaser", "rebaser_client", "rebaser_core", "tests", "deploy")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(file), f"{name(page)} links to {target}, and there is no such heading"


@pytest.mark.parametrize("page", [page for page in PAGES if DOCS in page.parents], ids=name)
def test_files_modules_and_names_in_them_exist(page: Path) -> None:
    """After the path of a file, as in `rebaser/server.py` `Server.run`, the name must be defined in that file."""
    prose = split(page)[0]
    for path, symbol in re.findall(r"`([\w.]+/[\w./]+)`(?:,? `([A-Za-z_][\w.]*)`)?", prose):
        if path.split("/")[0] not in TOPS:
            continue
        file = ROOT / path
        assert file.exists(), f"{name(page)} names {path}, which does not exist"
        if symbol and file.suffix == ".py":
            word = symbol.rpartition(".")[2]
            defined = rf"^\s*(?:async )?(?:def|class) {word}\b|^\s*(?:self\.)?{word}\b.*[:=]"
            assert re.search(defined, file.read_text(), re.MULTILINE), f"{path} does not define {symbol}"
    for module in re.findall(r"`((?:rebaser|rebaser_client|rebaser_core)(?:\.[a-z_]+)+)`", prose):
        top, room = module.split(".")[:2]
        # Otherwise the name is a subject.
        if any((ROOT / top / room).with_suffix(suffix).exists() for suffix in ("", ".py")):
            assert is_defined(module), f"{name(page)} names {module}, which is neither a module nor a name in one"


def is_defined(module: str) -> bool:
    """Return whether `module` is a module, or a name in one."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        inside, _, symbol = module.rpartition(".")
        return hasattr(importlib.import_module(inside), symbol)


def variables() -> set[str]:
    streams = {f"REBASER_{stream}" for stream in ("REQUESTS", "TASKS", "COMMITS", "DLQ", "BLOBS", "SWEEP")}
    settings = {f"REBASER_{field.upper()}" for field in Settings.model_fields}
    return (
        streams | settings | {"REBASER_AUTHOR"} | {f"REBASER_LIMITS__{bound.name.upper()}" for bound in fields(Limits)}
    )


@pytest.mark.parametrize("page", GUIDE, ids=name)
def test_variables_are_settings(page: Path) -> None:
    if page.parent.name != "reference":
        assert set(re.findall(r"(?<!\$)\bREBASER_[A-Z_]+[A-Z]\b", page.read_text())) <= variables()


@pytest.mark.parametrize("page", GUIDE, ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    """In the text, and in blocks of commands: other tests run only some of these."""
    prose, blocks = split(page)
    for text in re.findall(r"`rebaser ([a-z][^`]*)`", prose):
        check_command(text.split(), f"{name(page)}: {text}")
    for block in blocks:
        lines = block.text.replace("\\\n", " ").splitlines() if block.language == "bash" else []
        for line in lines:
            if found := re.match(r"(?:[A-Z_]+=\S+ )*(?:uv run )?rebaser (.*)", line):
                check_command(shlex.split(found[1], comments=True), f"{block.name}: {line}")


def check_command(words: list[str], place: str) -> None:
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert command.name != "rebaser", f"{place}: there is no such command"
    options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
    named = {found[0] for word in words if (found := re.match(r"--?[a-z][a-z-]*(?==|$)", word))}
    assert named <= options, f"{place}: there is no option {', '.join(sorted(named - options))}"


@pytest.mark.parametrize("page", GUIDE, ids=name)
def test_programs_that_are_named_exist(page: Path) -> None:
    for module in re.findall(r"python -m ([a-z_.]+[a-z_])", page.read_text()):
        assert importlib.util.find_spec(module), f"{name(page)} names {module}, which is no module"


@pytest.mark.parametrize("page", [page for page in MAPS if map_of(page)], ids=name)
def test_the_map_of_a_folder_lists_what_is_in_it(page: Path) -> None:
    folder, listed = page.parent, set[str]()
    for entry in map_of(page):
        places = [folder / entry, folder / f"{entry}.py"]
        assert any(place.exists() for place in places), f"{name(page)} lists {entry}, which does not exist"
        listed.add(entry.strip("/").split("/")[0])
    for child in folder.iterdir():
        if child.name.startswith(("_", ".")) or child.name in ("README.md", "py.typed"):
            continue
        if child.is_dir() and not any("__pycache__" not in file.parts for file in child.rglob("*.*")):
            continue  # left behind by a package that moved
        known = child.name.removesuffix(".py") if child.suffix == ".py" else child.name
        assert known in listed, f"{name(page)} does not list {child.name}"


def test_each_package_with_a_guide_has_a_map() -> None:
    """The page of the JetStream layer has tables of rules instead, which `tests/unit/test_jetstream_readme.py`
    checks."""
    without = {name(page) for page in MAPS if not map_of(page)}
    assert without == {"rebaser_client/jetstream/README.md"}


def test_each_page_is_in_the_index() -> None:
    listed = {(DOCS / target.partition("#")[0]).resolve() for target in links(DOCS / "README.md")}
    decisions = DOCS / "decisions"
    listed |= {(decisions / target).resolve() for target in links(decisions / "README.md")}
    for page in DOCS.rglob("*.md"):
        assert page.resolve() in listed or page == DOCS / "README.md", f"no index names {name(page)}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110


def test_the_page_of_the_client_lists_all_calls() -> None:
    table = (DOCS / "client.md").read_text().partition("\n## All calls\n")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    calls = {name for name in dir(RebaserClient) if not name.startswith("_")} | {"dead_letters"}
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == calls


def test_the_life_of_an_owner_is_drawn_as_in_its_module() -> None:
    drawing = re.search(r"\n\n((?:    .*\n)+)\n", lifecycle.__doc__ or "")
    assert drawing is not None
    assert drawing[1] in [block.text for block in split(DOCS / "internals" / "design.md")[1]]
