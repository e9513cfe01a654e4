"""The packages import in one direction only, and the core does no I/O."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_IMPORT = {
    "rebaser_core": {"rebaser_core"},
    "rebaser_client": {"rebaser_core", "rebaser_client"},
    "rebaser": {"rebaser_core", "rebaser_client", "rebaser"},
}
IMPURE = {
    "asyncio", "anyio", "datetime", "nats", "obstore", "os", "pathlib", "pyspark", "random", "secrets", "shutil",
    "socket", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def modules(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_in_one_direction(package: str) -> None:
    for path in modules(package):
        for name in imports(path):
            top = name.partition(".")[0]
            assert top not in MAY_IMPORT or top in MAY_IMPORT[package], f"{path.relative_to(ROOT)} imports {name}"


def test_the_core_does_no_io_and_has_neither_clock_nor_randomness() -> None:
    for path in modules("rebaser_core"):
        for name in imports(path):
            assert name.partition(".")[0] not in IMPURE, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("module", ["change_set/lifecycle.py", "dvu/planning/packet_plan.py", "dvu/wire/packet.py"])
def test_state_machine_and_planner_are_pure(module: str) -> None:
    for name in imports(ROOT / "rebaser" / module):
        assert name.partition(".")[0] not in IMPURE, f"rebaser/{module} imports {name}"
