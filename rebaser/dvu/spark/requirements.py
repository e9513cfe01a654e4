"""Finds all third-party packages that the workers of a remote Spark lack.

Invariant: the function that probes a worker uses only Python's standard library, because the worker may have neither
Rebaser nor the packages.
"""

import importlib.metadata
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement

from rebaser.dvu.spark.bundle import Bundle

REQUIRED_PACKAGES = ("cbor2", "cel-expr-python", "numpy", "protobuf", "pyarrow", "structlog")
OPTIONAL_PACKAGES = ("numba",)  # packages for compiled code; without them, results are the same
STORE_PACKAGES = ("obstore",)  # packages with which workers read a blob store
INSTALL_HINT = "install them for the Python that Spark's workers run (PYSPARK_PYTHON)"


@dataclass(frozen=True, slots=True)
class WorkerPackages:
    """The packages that one worker has: `versions` maps the name of each probed package to its version. `host` is the
    name of the worker's machine."""

    host: str
    versions: Mapping[str, str]


def probe(names: Iterable[str]) -> Callable[[int], str]:
    """Return a function that runs on a worker and looks up the packages `names`. `parse_reply` decodes its result.

    The function is defined inside `probe`, so that it is pickled by value.
    """
    wanted = list(names)

    def versions_here(_: int) -> str:
        versions = {}
        for name in wanted:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return json.dumps([socket.gethostname(), versions])

    return versions_here


def parse_reply(text: str) -> WorkerPackages:
    """Return the packages that a probe returned as `text`."""
    return WorkerPackages(*json.loads(text))


def required(*, store: bool) -> tuple[list[Requirement], list[Requirement]]:
    """Return the packages that Rebaser requires on workers, and the packages that it uses there if they are installed.
    `store` tells whether the workers read a blob store."""
    declared = importlib.metadata.requires("rebaser")
    ours = {requirement.name: requirement for requirement in _applicable(declared, ("", "blobs", "server"))}
    cel = importlib.metadata.version("cel-expr-python")
    ours["cel-expr-python"] = Requirement(f"cel-expr-python=={cel}")  # workers need the same version
    needed, optional = (
        [ours.get(name) or Requirement(name) for name in names]
        for names in (REQUIRED_PACKAGES, OPTIONAL_PACKAGES + STORE_PACKAGES * store)
    )
    return needed, optional


def plugin_requirements(bundle: Bundle) -> list[Requirement]:
    """Return the packages that workers need for plug-ins: the plug-ins that are not in the bundle, and the requirements
    of each plug-in."""
    requirements = [Requirement(f"{plugin.name}=={plugin.version}") for plugin in bundle.not_sent]
    for plugin in (*bundle.sent, *bundle.not_sent):
        requirements += (declared for declared in _applicable(plugin.requires) if declared.name != "rebaser")
    return requirements


def missing(workers: Iterable[WorkerPackages], requirements: Iterable[Requirement]) -> str:
    """Return one line that lists the packages that are missing or have a wrong version, by host; empty if there are
    none."""
    hosts: dict[str, set[str]] = {}
    for worker in workers:
        lacks = [_lack(requirement, worker.versions.get(requirement.name)) for requirement in requirements]
        if names := ", ".join(name for name in lacks if name):
            hosts.setdefault(names, set()).add(worker.host)
    return "; ".join(f"{', '.join(sorted(where))}: {names}" for names, where in sorted(hosts.items()))


def _lack(requirement: Requirement, version: str | None) -> str:
    wanted = f"{requirement.name}{requirement.specifier}"
    if version is None:
        return wanted
    return "" if requirement.specifier.contains(version, prereleases=True) else f"{wanted} (installed: {version})"


def _applicable(requirements: Iterable[str] | None, extras: Sequence[str] = ("",)) -> list[Requirement]:
    """Return the parsed `requirements` whose environment marker is true for this Python and one of `extras`."""
    parsed = [Requirement(text) for text in requirements or ()]
    return [
        requirement
        for requirement in parsed
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
    ]
