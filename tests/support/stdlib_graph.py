"""A real dependency graph with cycles: which modules of Python's standard library import which.

It is read from the sources, nothing is imported. `updates` says it in Rebaser's terms; `expected` computes every value
that must come of it, in plain Python that shares nothing with Rebaser: reach by search, cycles by Kosaraju's method.
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

# Tests are no part of the library, and idlelib, lib2to3 and turtledemo are programs in it.
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
SHOWN = 32  # members of a cycle that a message names, at most

Imports = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Graph:
    """`sizes` in bytes by module; `load`: what each imports when it is loaded; `any`: functions included."""

    sizes: Mapping[str, int]
    load: Imports
    any: Imports

    def mended(self) -> tuple["Graph", list[str]]:
        """Without any cycle at load, and the modules that no longer import what depends on them to get there."""
        load, changed = dict(self.load), []
        while left := cycles(load):
            module = min(left)
            load[module] = tuple(one for one in load[module] if module not in reach(one, load))
            changed.append(module)
        return replace(self, load=load), changed


def standard_library() -> Graph:
    """The graph of the Python that runs this."""
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
    """All statements, or without `functions` those that run when a module is loaded; what is for the type checker only
    is not among these."""
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


# -- in Rebaser's terms ------------------------------------------------------------------------------------------------


def updates(graph: Graph, prefix: str = "") -> Iterator[Update]:
    """Sizes, and what follows from them; every id begins with `prefix`."""
    yield Set(f"{prefix}floor", -1)
    for module, size in graph.sizes.items():
        yield Set(f"{prefix}size/{module}", size)
        yield Derive(f"{prefix}own/{module}", "object", {module: f"{prefix}size/{module}"})
        yield from derived_at_load(graph, module, prefix)
        yield closure("any", graph.any[module], module, prefix)


def derived_at_load(graph: Graph, module: str, prefix: str = "") -> Iterator[Update]:
    """What is derived for one module from what it imports when it is loaded."""
    imports = graph.load[module]
    yield closure("load", imports, module, prefix)
    yield Derive(f"{prefix}bytes/{module}", "sum", {"of": f"{prefix}load/{module}"})
    yield Derive(f"{prefix}imports/{module}", "count", {"of": [f"{prefix}size/{one}" for one in imports]})
    depths = [f"{prefix}floor", *(f"{prefix}depth/{one}" for one in imports)]
    yield Derive(f"{prefix}below/{module}", "max", {"of": depths})
    yield Derive(f"{prefix}depth/{module}", "cel", {"below": f"{prefix}below/{module}"}, {"expr": "below + 1"})


def closure(kind: str, imports: Iterable[str], module: str, prefix: str) -> Derive:
    """All modules that come along with `module`, with their sizes."""
    others = [f"{prefix}{kind}/{one}" for one in imports]
    return Derive(f"{prefix}{kind}/{module}", "merge", {"own": f"{prefix}own/{module}", "imports": others})


# -- what must come of it ----------------------------------------------------------------------------------------------


def reach(start: str, imports: Imports) -> set[str]:
    """What `start` depends on, directly or not."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        new = set(imports[todo.pop()]) - seen
        seen |= new
        todo.extend(new)
    return seen


def cycles(imports: Imports) -> dict[str, list[str]]:
    """For every module that depends on itself: all modules of its cycle, sorted (Kosaraju's two searches)."""
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
    """By id: `value`, `state` and `error`, as `rebaser get --json` shows them."""
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
    """For every module outside cycles that depends on one: its first import that does, or is in one; and the first
    member of the cycle that this leads to."""
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
    """`input_id` is the first input that failed, `origin` where the trouble started."""
    return bad("failed_input", f"input '{input_id}' failed: cycle in '{origin}'", origin)
