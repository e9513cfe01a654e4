"""Rules that keep the sources easy to read: sizes, names, no unused module, a description of every package."""

import ast
import re
from collections import defaultdict

import pytest

from rebaser.dvu import fingerprint
from tests.support import sources

MODULE_LINES = 400
FUNCTION_LINES = 70
NAMED_IN_STRINGS = {  # imported by name, run with `python -m`, or an entry point
    "rebaser.__main__",
    "rebaser.dvu.compiled.kernel",
    "rebaser.dvu.planning.warm_up",
    "rebaser.dvu.worker.daemon",
    "rebaser.testing.plugin",
    "rebaser.testing.strategies",
}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines from the first statement to the last, without signature and docstring: the options of a command
    are a table."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return 0 if not body else (body[-1].end_lineno or 0) - body[0].lineno + 1


@pytest.mark.parametrize("module", sources.modules())
def test_a_module_and_its_functions_can_be_taken_in(module: str) -> None:
    assert len(sources.modules()[module].read_text().splitlines()) <= MODULE_LINES
    for node in ast.walk(sources.tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert body_lines(node) <= FUNCTION_LINES, node.name


def test_a_module_of_tests_can_be_taken_in_too() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (sources.ROOT / "tests").rglob("*.py")}
    assert {path for path, lines in lengths.items() if lines > MODULE_LINES} == set()


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(set)
    for module in sources.modules():
        for node in ast.walk(sources.tree(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_module_is_dead() -> None:
    used = {name for module in sources.modules() for name in sources.imports(module)} | NAMED_IN_STRINGS
    unused = {module for module, path in sources.modules().items() if path.name != "__init__.py"} - used
    assert unused == set()


def test_every_package_says_what_lives_there() -> None:
    for module, path in sources.modules().items():
        assert path.name != "__init__.py" or ast.get_docstring(sources.tree(module)), f"{module} has no docstring"


def test_the_fingerprint_covers_all_that_a_worker_imports() -> None:
    rooms = tuple(str(room) for room in fingerprint._ROOMS)
    for start in ("rebaser.dvu.worker.evaluate", "rebaser.dvu.worker.daemon", "rebaser.dvu.compiled.kernel"):
        for module, importer in sources.reached(start).items():
            path = sources.modules()[module]
            inside = str(path).startswith(rooms) or path.parent == sources.ROOT / "rebaser" / "dvu"
            assert inside or module == "rebaser", f"{module}, imported by {importer}"


TESTED = dict(
    re.findall(r"^\| `(rebaser[\w.]*)` \| (.+) \|$", (sources.ROOT / "tests" / "README.md").read_text(), re.MULTILINE)
)


def test_the_table_of_tests_has_a_row_for_each_room() -> None:
    assert set(TESTED) == {module for module, path in sources.modules().items() if path.name == "__init__.py"}


@pytest.mark.parametrize("room", TESTED)
def test_what_tests_a_room_imports_from_it(room: str) -> None:
    for other in re.findall(r"`(rebaser[\w.]*)`", TESTED[room]):
        assert other in TESTED
    for file in re.findall(r"`(\w+/test_\w+\.py)`", TESTED[room]):
        text = (sources.ROOT / "tests" / file).read_text()
        support = re.findall(r"^from tests\.support\.(\w+) import", text, re.MULTILINE)
        texts = [text, *((sources.ROOT / "tests" / "support" / f"{name}.py").read_text() for name in support)]
        assert any(re.search(rf"\b{re.escape(room)}[ .]", one) for one in texts), file


def test_each_test_that_the_table_of_crashes_names_exists() -> None:
    tests = sources.ROOT / "tests"
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (tests / "README.md").read_text())
    assert len(named) > 20
    missing = [name for path, name in named if f"def {name}(" not in (tests / path).read_text()]
    assert not missing
