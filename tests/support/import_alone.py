"""Imports the module of each command in a process that has imported no other module of Rebaser:
`python -m tests.support.import_alone`.

Tests of commands run in processes that have imported all of these modules (`tests.support.command_server`), so a module
that can only be imported after another one would work there. Here, each process is forked from one that has imported
only libraries. After the module, it imports what the functions of the module import.

Prints the name of each module that was imported without an error, and the tracebacks of the others to stderr.
"""

import ast
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARIES = ("anyio", "cbor2", "msgspec", "nats", "numpy", "pyarrow", "pydantic", "rich.table", "structlog", "typer")


def modules() -> list[str]:
    paths = sorted((ROOT / "rebaser" / "cli" / "commands").rglob("*.py"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]


def import_alone(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    for source, wanted in imported_by_functions(Path(module.__file__)):
        if not hasattr(importlib.import_module(source), wanted):
            importlib.import_module(f"{source}.{wanted}")


def imported_by_functions(file: Path) -> Iterator[tuple[str, str]]:
    """Yield each module of Rebaser from which a function imports, and the name that it imports."""
    for function in ast.walk(ast.parse(file.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rebaser"):
                    yield from ((str(node.module), alias.name) for alias in node.names)


def main() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    for name in modules():
        child = os.fork()
        if not child:
            try:
                import_alone(name)
            except BaseException:  # noqa: BLE001 - the child must not go on with the loop
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            print(name, flush=True)
        else:
            print(f"{name} cannot be imported alone", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
