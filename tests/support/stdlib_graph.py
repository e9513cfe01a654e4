"""A real dependency graph with cycles: the imports between the modules of Python's standard library.

The sources are parsed, and nothing is imported. `updates` returns the graph as updates. `expected` computes every value
that should result, in plain Python that shares no code with Rebaser: it finds dependencies by search, and cycles with
Kosaraju's algorithm.
"""

import ast
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rebaser_client import Derive, Set
from rebaser_core.updates import Update

# Tests are not part of the library; idlelib, lib2to3 and turtledemo are programs.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
SHOWN = 32  # the most members of a cycle that an error message names

Imports = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Graph:
    """The imports between modules. `sizes` has the bytes of each module, `load` what it imports when it is loaded, and
    `any` also what its functions import."""

    sizes: Mapping[str, int]
    load: Imports
    any: Imports

    def mended(self) -> tuple["Graph", list[str]]:
        """Return the graph without cycles of imports at load, and the modules that lost imports for this."""
        load, changed = dict(self.load), []
        while left := cycles(load):
            module = min(left)
            load[module] = tuple(one for one in load[module] if module not in reach(one, load))
            changed.append(module)
        return replace(self, load=load), changed


def standard_library() -> Graph:
    """Return the graph of the standard library of the running Python."""
    root = Path(sysconfig.get_path("stdlib"))
    trees: dict[str, tuple[ast.Module, bool]] = {}
    sizes: dict[str, int] = {}
    for path in sources(root):
        parts = path.relative_to(root).with_suffix("").parts
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        source = path.read_bytes()
        trees[name] = ast.parse(source), package
        sizes[name] = len(source)
    found: dict[str, dict[str, tuple[str, ...]]] = {"load": {}, "any": {}}
    for name, (tree, package) in trees.items():
        for kind, nodes in (("load", _statements(tree.body, functions=False)), ("any", _statements(tree.body))):
            named = {one for node in nodes for one in _imported(node, name, package, sizes)}
            found[kind][name] = tuple(sorted(named - {name}))
    return Graph(sizes, found["load"], found["any"])


def sources(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED)
        yield from (Path(folder, file) for file in sorted(files) if file.endswith(".py"))


def _statements(body: Iterable[ast.stmt], *, functions: bool = True) -> Iterator[ast.AST]:
    """Yield all statements, except those for the type checker only. Without `functions`, yield only statements that run
    when a module is loaded."""
    for node in body:
        yield node
        if not functions:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
        for block in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, block, ()), functions=functions)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _statements(part.body, functions=functions)


def _imported(node: ast.AST, module: str, package: bool, known: Mapping[str, int]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = module.split(".")
            above = parts[: len(parts) - node.level + package]
            base = ".".join([*above, *([base] if base else [])])
        names = [f"{base}.{alias.name}" for alias in node.names]
    else:
        return
    for name in names:
        while name and name not in known:
            name = name.rpartition(".")[0]  # noqa: PLW2901 - `a.b.c` may be a name in `a.b`
        if name:
            yield name


# -- the graph as updates ----------------------------------------------------------------------------------------------


def updates(graph: Graph, prefix: str = "") -> Iterator[Update]:
    """Yield updates that set all sizes and derive values from them. Every id begins with `prefix`."""
    yield Set(f"{prefix}floor", -1)
    for module, size in graph.sizes.items():
        yield Set(f"{prefix}size/{module}", size)
        yield Derive(f"{prefix}own/{module}", "object", {module: f"{prefix}size/{module}"})
        yield from derived_at_load(graph, module, prefix)
        yield closure("any", graph.any[module], module, prefix)


def derived_at_load(graph: Graph, module: str, prefix: str = "") -> Iterator[Update]:
    """Yield the definitions that are derived from what a module imports when it is loaded."""
    imports = graph.load[module]
    yield closure("load", imports, module, prefix)
    yield Derive(f"{prefix}bytes/{module}", "sum", {"of": f"{prefix}load/{module}"})
    yield Derive(f"{prefix}imports/{module}", "count", {"of": [f"{prefix}size/{one}" for one in imports]})
    depths = [f"{prefix}floor", *(f"{prefix}depth/{one}" for one in imports)]
    yield Derive(f"{prefix}below/{module}", "max", {"of": depths})
    yield Derive(f"{prefix}depth/{module}", "cel", {"below": f"{prefix}below/{module}"}, {"expr": "below + 1"})


def closure(kind: str, imports: Iterable[str], module: str, prefix: str) -> Derive:
    """Return the definition of all modules that an import of `module` loads, with their sizes."""
    others = [f"{prefix}{kind}/{one}" for one in imports]
    return Derive(f"{prefix}{kind}/{module}", "merge", {"own": f"{prefix}own/{module}", "imports": others})


# -- the expected values -----------------------------------------------------------------------------------------------


def reach(start: str, imports: Imports) -> set[str]:
    """Return everything on which `start` depends, directly or indirectly."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        new = set(imports[todo.pop()]) - seen
        seen |= new
        todo.extend(new)
    return seen


def cycles(imports: Imports) -> dict[str, list[str]]:
    """Return, for every module that depends on itself, the sorted modules of its cycle (Kosaraju's algorithm)."""
    importers: dict[str, list[str]] = {module: [] for module in imports}
    for module, others in imports.items():
        for other in others:
            importers[other].append(module)
    finished: list[str] = []
    seen: set[str] = set()
    for start in imports:
        stack = [(start, False)]
        while stack:
            module, done = stack.pop()
            if done:
                finished.append(module)
            elif module not in seen:
                seen.add(module)
                stack.append((module, True))
                stack.extend((other, False) for other in imports[module])
    found: dict[str, list[str]] = {}
    seen = set()
    for start in reversed(finished):
        members: list[str] = []
        todo = [start]
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                members.append(module)
                todo.extend(importers[module])
        if len(members) > 1:
            found.update(dict.fromkeys(members, sorted(members)))
    return found


def expected(graph: Graph, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return `value`, `state` and `error` by id, as `rebaser get --json` shows them."""
    found = {f"{prefix}floor": good(-1)}
    for module, size in graph.sizes.items():
        found[f"{prefix}size/{module}"] = good(size)
        found[f"{prefix}own/{module}"] = good({module: size})
        found[f"{prefix}imports/{module}"] = good(len(graph.load[module]))
    for kind, imports in (("load", graph.load), ("any", graph.any)):
        in_cycle, causes = cycles(imports), first_causes(imports)
        for module in graph.sizes:
            id_ = f"{prefix}{kind}/{module}"
            if module in in_cycle:
                found[id_] = cycle([f"{prefix}{kind}/{one}" for one in in_cycle[module]])
            elif module in causes:
                name, origin = causes[module]
                found[id_] = failed(f"{prefix}{kind}/{name}", f"{prefix}{kind}/{origin}")
            else:
                found[id_] = good({one: graph.sizes[one] for one in reach(module, imports) | {module}})
    found.update(_bytes(graph, prefix))
    found.update(_depths(graph, prefix))
    return found


def _bytes(graph: Graph, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    in_cycle, causes = cycles(graph.load), first_causes(graph.load)
    for module in graph.sizes:
        id_ = f"{prefix}bytes/{module}"
        if module in in_cycle or module in causes:
            origin = in_cycle[module][0] if module in in_cycle else causes[module][1]
            yield id_, failed(f"{prefix}load/{module}", f"{prefix}load/{origin}")
        else:
            yield id_, good(sum(graph.sizes[one] for one in reach(module, graph.load) | {module}))


def _depths(graph: Graph, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    in_cycle, causes = cycles(graph.load), first_causes(graph.load)
    known: dict[str, int] = {}

    def depth(module: str) -> int:
        if module not in known:
            known[module] = max((depth(one) + 1 for one in graph.load[module]), default=0)
        return known[module]

    for module in graph.sizes:
        below, own = f"{prefix}below/{module}", f"{prefix}depth/{module}"
        if module in in_cycle:
            members = [f"{prefix}{which}/{one}" for which in ("below", "depth") for one in in_cycle[module]]
            yield below, cycle(members)
            yield own, cycle(members)
        elif module in causes:
            name, origin = causes[module]
            yield below, failed(f"{prefix}depth/{name}", f"{prefix}below/{origin}")
            yield own, failed(below, f"{prefix}below/{origin}")
        else:
            yield below, good(depth(module) - 1)
            yield own, good(depth(module))


def first_causes(imports: Imports) -> dict[str, tuple[str, str]]:
    """Return a pair for every module that is in no cycle but depends on one: its first import that is in a cycle or
    depends on one, and the first member of the cycle to which this import leads."""
    in_cycle = cycles(imports)
    known: dict[str, tuple[str, str] | None] = {}

    def cause(module: str) -> tuple[str, str] | None:
        if module not in known:
            known[module] = None
            for one in imports[module]:
                deeper = cause(one) if one not in in_cycle else ("", in_cycle[one][0])
                if deeper is not None:
                    known[module] = one, deeper[1]
                    break
        return known[module]

    return {module: found for module in imports if module not in in_cycle and (found := cause(module))}


def good(value: object) -> dict[str, Any]:
    return {"value": value, "state": "ok", "error": None}


def bad(code: str, message: str, origin: str) -> dict[str, Any]:
    return {"value": None, "state": "error", "error": {"code": code, "message": message, "origin": origin}}


def cycle(members: list[str]) -> dict[str, Any]:
    names = sorted(members)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
    return bad("cycle", f"these depend on each other: {shown}{more}", names[0])


def failed(input_id: str, origin: str) -> dict[str, Any]:
    """Return a failed value. `input_id` is the first input that failed, `origin` the value where the failure began."""
    place = "" if origin == input_id else f" in '{origin}'"
    return bad("failed_input", f"input '{input_id}' failed: cycle{place}", origin)
