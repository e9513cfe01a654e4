"""`deploy/constraints.txt` pins every installed package for each supported Python, and names no package index."""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = [line for line in (ROOT / "deploy" / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PYTHONS = [
    line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if re.search(r":: Python :: 3\.\d+$", line)
]


def environment(python: str) -> dict[str, str]:
    return {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux", "extra": ""}


def pinned(python: str) -> dict[str, str]:
    """Return the pinned versions by name, for a Python version."""
    found: dict[str, str] = {}
    for line in LINES:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment(python)):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} is pinned twice for Python {python}"
            found[name] = str(requirement.specifier).removeprefix("==")
    return found


def declared() -> Iterator[Requirement]:
    project = PROJECT["project"]
    groups = [*project["optional-dependencies"].values(), *PROJECT["dependency-groups"].values()]
    for text in (*project["dependencies"], *(text for group in groups for text in group)):
        requirement = Requirement(text)
        if requirement.name != project["name"]:
            yield requirement


def test_each_line_is_a_name_and_a_version() -> None:
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [a-z_]+ [^:/@\\]+)?", line), line


@pytest.mark.parametrize("python", PYTHONS)
def test_declared_dependencies_are_pinned_to_what_they_allow(python: str) -> None:
    versions = pinned(python)
    for requirement in declared():
        name = canonicalize_name(requirement.name)
        if requirement.marker is None or requirement.marker.evaluate(environment(python)):
            assert name in versions, f"{name} is not pinned for Python {python}"
            assert requirement.specifier.contains(versions[name]), f"{requirement}: {versions[name]} is pinned"


def test_what_the_dependencies_need_is_pinned() -> None:
    """Checks the dependencies that are installed here."""
    names = {canonicalize_name(Requirement(line).name) for line in LINES}
    ahead = [(requirement.name, frozenset(requirement.extras)) for requirement in declared()]
    seen = set(ahead)
    while ahead:
        name, extras = ahead.pop()
        try:
            needs = importlib.metadata.distribution(name).requires or []
        except importlib.metadata.PackageNotFoundError:
            continue
        assert canonicalize_name(name) in names, f"{name} is not pinned"
        for requirement in map(Requirement, needs):
            wanted = (requirement.name, frozenset(requirement.extras))
            marker = requirement.marker
            applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
            if applies and wanted not in seen:
                seen.add(wanted)
                ahead.append(wanted)
