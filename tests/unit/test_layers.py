"""Tests which module may import which: in one direction, without circles, and no I/O in the core."""

import pytest

from tests.support import sources

MAY_IMPORT = {
    "rebaser_core": {"rebaser_core"},
    "rebaser_client": {"rebaser_core", "rebaser_client"},
    "rebaser": {"rebaser_core", "rebaser_client", "rebaser"},
}
IMPURE = {
    "asyncio", "anyio", "datetime", "nats", "obstore", "os", "pathlib", "pyspark", "random", "secrets", "shutil",
    "socket", "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
PURE = [
    "rebaser.change_set.lifecycle",
    "rebaser.doctor.log_message",
    "rebaser.ops.probes",
    "rebaser.doctor.history",
    "rebaser.dvu.wire.packet",
    "rebaser_core.explain.reasons",
    "rebaser_client.jetstream.pull.counts",
    "rebaser_client.jetstream.pull.state",
]


def packages() -> list[str]:
    found = [name for name, path in sources.modules().items() if path.name == "__init__.py"]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_in_one_direction(package: str) -> None:
    for module in sources.modules():
        if module.partition(".")[0] == package:
            for name in sources.imports(module):
                assert name.partition(".")[0] in MAY_IMPORT[package], f"{module} imports {name}"


def test_no_module_imports_itself_through_others() -> None:
    assert sources.circles({module: sources.imports(module) for module in sources.modules()}) == []


def test_the_console_needs_the_client_alone_and_only_the_command_line_opens_it() -> None:
    for module in sources.modules():
        inside = module.startswith("rebaser.console")
        for name in sources.imports(module):
            if inside:
                assert name.startswith(("rebaser.console", "rebaser_client", "rebaser_core")), (
                    f"{module} imports {name}"
                )
            elif name.startswith("rebaser.console"):
                assert module.startswith("rebaser.cli."), f"{module} imports {name}"


@pytest.mark.parametrize("package", packages())
def test_the_rooms_of_a_package_form_no_circle(package: str) -> None:
    assert sources.circles(sources.rooms(package)) == []


def test_a_circle_is_found() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": []}
    assert sources.circles(graph) == [["b", "c"]]


def test_the_core_does_no_io_and_has_neither_clock_nor_randomness() -> None:
    for module in sources.modules():
        if module.partition(".")[0] == "rebaser_core":
            assert not sources.outside(module) & IMPURE, module


@pytest.mark.parametrize("module", PURE)
def test_what_decides_is_pure_with_all_that_it_imports(module: str) -> None:
    for name, importer in sources.reached(module).items():
        assert not sources.outside(name) & IMPURE, f"{name}, imported by {importer}"
