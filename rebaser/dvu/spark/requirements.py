"""What the workers of a Spark elsewhere lack of other people's packages, all of it at once.

Invariant: the function that looks needs none of our code, and nothing but Python, on the machine where it looks.
"""

import importlib.metadata
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement

from rebaser.dvu.spark.bundle import Bundle

REQUIRED_PACKAGES = ("cbor2", "cel-expr-python", "numpy", "protobuf", "pyarrow", "structlog")
OPTIONAL_PACKAGES = ("numba",)  # compiled code; results are the same without
STORE_PACKAGES = ("obstore",)  # of use to whoever has a store that workers read
INSTALL_HINT = "install it for the Python that Spark's workers run (PYSPARK_PYTHON)"


@dataclass(frozen=True, slots=True)
class WorkerPackages:
    """What one worker has of the packages that were asked for: versions by name."""

    host: str
    versions: Mapping[str, str]


def probe(names: Iterable[str]) -> Callable[[int], str]:
    """A function for a worker; `parse_reply` reads what it returns. Nested, so that it is pickled by value."""
    wanted = list(names)

    def here(_: int) -> str:
        versions = {}
        for name in wanted:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return json.dumps([socket.gethostname(), versions])

    return here


def parse_reply(text: str) -> WorkerPackages:
    """What a worker said."""
    return WorkerPackages(*json.loads(text))


def required(*, store: bool) -> tuple[list[Requirement], list[Requirement]]:
    """What our code needs on workers, and what it makes use of, perhaps of a blob store, too."""
    every = {one.name: one for one in _applying(importlib.metadata.requires("rebaser"), ("", "blobs", "server"))}
    cel = importlib.metadata.version("cel-expr-python")
    every["cel-expr-python"] = Requirement(f"cel-expr-python=={cel}")  # formulas must mean the same
    needed, useful = (
        [every.get(name) or Requirement(name) for name in names]
        for names in (REQUIRED_PACKAGES, OPTIONAL_PACKAGES + STORE_PACKAGES * store)
    )
    return needed, useful


def plugin_requirements(bundle: Bundle) -> list[Requirement]:
    """What plug-ins need there: those that are not in the bundle themselves, and what each says that it requires."""
    found = [Requirement(f"{one.name}=={one.version}") for one in bundle.left]
    for one in (*bundle.sent, *bundle.left):
        found += (each for each in _applying(one.requires) if each.name != "rebaser")
    return found


def missing(found: Iterable[WorkerPackages], requirements: Iterable[Requirement]) -> str:
    """One line that names, by host, what is not there or of another version; empty if nothing is."""
    hosts: dict[str, set[str]] = {}
    for one in found:
        missing = [_missing(each, one.versions.get(each.name)) for each in requirements]
        if names := ", ".join(name for name in missing if name):
            hosts.setdefault(names, set()).add(one.host)
    return "; ".join(f"{', '.join(sorted(where))}: {names}" for names, where in sorted(hosts.items()))


def _missing(requirement: Requirement, version: str | None) -> str:
    wanted = f"{requirement.name}{requirement.specifier}"
    if version is None:
        return wanted
    return "" if requirement.specifier.contains(version, prereleases=True) else f"{wanted} (there is {version})"


def _applying(requirements: Iterable[str] | None, extras: Sequence[str] = ("",)) -> list[Requirement]:
    parsed = [Requirement(one) for one in requirements or ()]
    return [
        one for one in parsed if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]
