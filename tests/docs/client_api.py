"""Writes the reference page of the Python client from signatures and docstrings."""

import ast
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import rebaser_client
from rebaser_client.admin.fleet_watch import FleetWatch
from rebaser_client.blocking.client import BlockingFleetWatch
from tests.docs.pages import HEAD

WIDTH = 100  # characters of a line of a signature
TWINS = {"BlockingRebaserClient": ("connect", "open", "close", "fleet"), "BlockingFleetWatch": ()}  # what differs
KINDS = ("asynccontextmanager", "classmethod", "contextmanager", "property", "staticmethod")  # decorators to show

Function = ast.FunctionDef | ast.AsyncFunctionDef


def client_api_page() -> str:
    """Return the page: the clients with their methods, then updates, errors, and all other public names."""
    public = {name: getattr(rebaser_client, name) for name in rebaser_client.__all__}
    extra: dict[str, Any] = {"FleetWatch": FleetWatch, "BlockingFleetWatch": BlockingFleetWatch}
    clients = ["RebaserClient", "BlockingRebaserClient", "DeadLetterBox", "FleetWatch", "BlockingFleetWatch"]
    updates = ["Set", "Derive", "Unset", "Remove", "Match", "Recompute", "Ref", "Template", "Request"]
    errors = sorted(name for name, one in public.items() if inspect.isclass(one) and issubclass(one, Exception))
    rest = [name for name in public if name not in {*clients, *updates, *errors}]
    lines = [
        HEAD,
        "# The Python client: all names",
        "",
        "For programmers: the public names of `rebaser_client`, with their signatures and docstrings.",
        "[The Python client](../client.md) explains how to use them.",
        "",
    ]
    for title, names in (
        ("Clients", clients),
        ("Updates and references", updates),
        ("Values, results and options", rest),
        ("Errors", errors),
    ):
        lines += [f"## {title}", ""]
        for name in names:
            lines += described(name, public.get(name, extra.get(name)))
    return "\n".join(lines)


def described(name: str, one: Any) -> Iterator[str]:
    """Yield the lines about the public name `name`."""
    yield from (f"### {name}", "")
    if not inspect.isclass(one):
        module = rebaser_client._MODULES[name]
        yield from code(ast.unparse(assigned(module, name)))
        return
    node = class_node(one)
    bases = [ast.unparse(base) for base in node.bases]
    head = f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    yield from code("\n".join([f"{head}:", *(f"    {field}" for field in fields(one, node))]).removesuffix(":"))
    yield from docstring(one.__doc__ if "__doc__" in vars(one) and not generated(one) else None)
    for member, method in methods(one):
        if name in TWINS and member not in TWINS[name]:
            continue
        yield from (f"#### {name}.{member}", "")
        yield from code(signature(method))
        yield from docstring(inspect.getdoc(method))


def fields(one: type, node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields of a dataclass or of a dictionary with fixed keys, or the members of an enumeration."""
    if issubclass(one, enum.Enum):
        yield from (f"{member.name} = {member.value!r}" for member in one)
    elif not issubclass(one, Exception):
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and not ast.unparse(line.target).startswith("_"):
                yield ast.unparse(line)


def methods(one: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods and properties of a class, sorted by name."""
    for name in sorted(dir(one)):
        member = inspect.getattr_static(one, name)
        method = member.fget if isinstance(member, property) else getattr(one, name)
        function = inspect.unwrap(getattr(method, "__func__", method)) if callable(method) else None
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        if method.__doc__ and function.__module__.startswith("rebaser"):
            yield name, method


def signature(method: Any) -> str:
    """Return the signature of a method as its source has it. Each parameter has a line of its own if it is long."""
    node = function_node(inspect.unwrap(getattr(method, "__func__", method)))
    kinds = [f"@{name}" for name in map(ast.unparse, node.decorator_list) if name in KINDS]
    head = f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}def {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{head}({ast.unparse(node.args)}){returns}"
    if len(line) > WIDTH:
        line = f"{head}(\n{''.join(f'    {one},' + chr(10) for one in parameters(node.args))}){returns}"
    return "\n".join([*kinds, line])


def parameters(arguments: ast.arguments) -> Iterator[str]:
    """Yield the parameters of a function."""
    plain = [*arguments.posonlyargs, *arguments.args]
    without = len(plain) - len(arguments.defaults)
    for at, one in enumerate(plain):
        yield ast.unparse(one) + (f" = {ast.unparse(arguments.defaults[at - without])}" if at >= without else "")
    if arguments.vararg:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield ast.unparse(one) + (f" = {ast.unparse(default)}" if default else "")
    if arguments.kwarg:
        yield f"**{ast.unparse(arguments.kwarg)}"


def code(text: str) -> tuple[str, ...]:
    text = re.sub(r"'([^'\"\\]*)'", r'"\1"', text)  # as the formatter writes it
    return ("```python not run: a signature", text, "```", "")


def docstring(text: str | None) -> tuple[str, ...]:
    return (inspect.cleandoc(text), "") if text else ()


def generated(one: type) -> bool:
    """Return whether a dataclass has no docstring of its own, but one that `dataclass` made."""
    return (one.__doc__ or "").startswith(f"{one.__name__}(")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(Path(inspect.getfile(importlib.import_module(module))).read_text())


def class_node(one: type) -> ast.ClassDef:
    [node] = [
        node for node in ast.walk(tree(one.__module__)) if isinstance(node, ast.ClassDef) and node.name == one.__name__
    ]
    return node


def function_node(function: Any) -> Function:
    [node] = [
        node
        for node in ast.walk(tree(function.__module__))
        if isinstance(node, Function)
        and function.__code__.co_firstlineno in (node.lineno, *(one.lineno for one in node.decorator_list))
    ]
    return node


def assigned(module: str, name: str) -> ast.stmt:
    """Return the statement that assigns `name` in `module`, or in the module from which it imports the name."""
    for node in tree(module).body:
        if isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                return node
        if isinstance(node, ast.ImportFrom) and name in [one.name for one in node.names]:
            return assigned(node.module or "", name)
    raise LookupError(f"{module} does not define {name}")
