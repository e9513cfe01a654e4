"""The sources of the product as data: its modules, and what each imports. The sources are parsed, not run."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("rebaser_core", "rebaser_client", "rebaser")


@cache
def modules() -> dict[str, Path]:
    """Return the files of all modules of the product by dotted name. A package has the name of its folder."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


def imported_names(module: str) -> Iterator[tuple[str, str]]:
    """Yield each import in the module as (module, name or ""), including those inside functions and for types only."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{module} imports relatively"
            yield from ((node.module, alias.name) for alias in node.names)


@cache
def imports(module: str) -> frozenset[str]:
    """Return the modules of the product that a module imports."""
    known = modules()
    named = (f"{source}.{name}" if f"{source}.{name}" in known else source for source, name in imported_names(module))
    return frozenset(name for name in named if name in known) - {module}


def outside(module: str) -> frozenset[str]:
    """Return the top-level packages of other projects, and of the standard library, that a module imports.

    `urllib.parse` is listed under its full name, because it is pure, unlike the other modules of `urllib`.
    """
    names = {source for source, _ in imported_names(module)}
    return frozenset(name if name == "urllib.parse" else name.partition(".")[0] for name in names) - set(PACKAGES)


def reached(module: str, *, stop_at: Iterable[str] = ()) -> dict[str, str]:
    """Return all modules that `module` imports directly or through others, each with one module that imports it.

    The modules in `stop_at` are left out, and so are their imports.
    """
    seen, waiting, ends = {module: ""}, [module], set(stop_at)
    while waiting:
        importer = waiting.pop()
        for name in imports(importer) - ends - seen.keys():
            seen[name] = importer
            waiting.append(name)
    return seen


def rooms(package: str) -> dict[str, set[str]]:
    """Return the children of a package, modules and packages alike, each with the siblings that it imports."""

    def child(module: str) -> str:
        inside = module.startswith(f"{package}.")
        return ".".join(module.split(".")[: package.count(".") + 2]) if inside else ""

    graph: dict[str, set[str]] = {}
    for module in modules():
        if room := child(module):
            graph.setdefault(room, set()).update({child(name) for name in imports(module)} - {room, ""})
    return graph


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of two or more nodes: groups of nodes that reach each other."""
    reaches = {node: _reached(graph, node) for node in graph}
    found = {frozenset(other for other in reaches[node] if node in reaches.get(other, ())) for node in graph}
    return sorted(sorted(circle) for circle in found if circle)


def _reached(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen
