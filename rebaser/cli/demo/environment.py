"""Reads the data of the demo: the installed Python distributions with their sizes and requirements.

A requirement counts if its marker (PEP 508) is true on this machine without any extra. Names are normalised as in PEP
503.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import Distribution as Installed
from importlib.metadata import distributions
from typing import TypeAlias

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution. `size` is the number of bytes of its files on disk. `requires` contains the sorted
    names of the distributions that it requires, whether they are installed or not."""

    name: str
    size: int
    requires: tuple[str, ...]

    def requiring(self, *names: str) -> "Distribution":
        """Return a copy that requires the distributions `names` and no others."""
        return replace(self, requires=tuple(sorted(set(names))))


Environment: TypeAlias = Mapping[str, Distribution]


def read_environment() -> dict[str, Distribution]:
    """Return every installed distribution, by name. If several distributions have the same name, the first on
    `sys.path` is returned."""
    environment: dict[str, Distribution] = {}
    for installed in distributions():
        if "Name" not in installed.metadata:
            continue  # remains of a broken installation
        name = canonicalize_name(installed.metadata["Name"])
        if name not in environment:
            environment[name] = Distribution(name, _size(installed), _requires(installed))
    return dict(sorted(environment.items()))


def _size(installed: Installed) -> int:
    total = 0
    for file in installed.files or ():
        try:
            total += file.locate().stat().st_size  # type: ignore[attr-defined]  # a Path, though the protocol does not say so
        except OSError:
            continue  # a recorded file that was deleted later
    return total


def _requires(installed: Installed) -> tuple[str, ...]:
    names: set[str] = set()
    for text in installed.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # installers cannot read this requirement, either
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            names.add(canonicalize_name(requirement.name))
    return tuple(sorted(names))
