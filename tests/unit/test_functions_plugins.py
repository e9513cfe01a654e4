"""Plug-ins that are installed as a distribution on the path, with entry points."""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rebaser.dvu import fingerprint
from rebaser.dvu.faults import CRASHED
from rebaser.dvu.functions import Function, registry
from rebaser.dvu.functions.registry import ENTRY_POINT_GROUP, FunctionRegistry, added, identity, load
from rebaser.dvu.wire.packet import IN_ERROR, NEVER_COMPUTED, DefinitionTemplate, PacketBuilder, Results
from rebaser.dvu.worker.evaluate import evaluate_packet
from rebaser_core.values import Json

Install = Callable[..., FunctionRegistry]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs a plug-in with the given source and entry points, and loads all plug-ins again."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str, entries: dict[str, str], module: str, version: str = "1.0") -> FunctionRegistry:
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
        lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{lines}\n")
        return load(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))

    return make


def computed(
    known: FunctionRegistry, given: list[Json], *functions: str, isolate: bool = False, **params: Json
) -> Results:
    """Return the results of each of `functions` for each of `given`."""
    packet = PacketBuilder(1, fingerprint.code(), known.fingerprints(functions), constants=[*given])
    packet.templates = [DefinitionTemplate(name, (("x", -1),), params) for name in functions]
    packet.template = [number for number in range(len(functions)) for _ in given]
    packet.refs = [~at for at in range(len(given))] * len(functions)
    packet.dirty, packet.old = bytearray([1] * len(packet.template)), [NEVER_COMPUTED] * len(packet.template)
    [data] = evaluate_packet(packet.encode(), known, isolate=isolate)
    return Results.decode(data)


def test_a_callable_is_a_function_named_by_its_entry(install: Install) -> None:
    source = 'def add(inputs, params):\n    """Adds."""\n    return inputs["a"] + params["b"]\n'
    found = install(source, {"plus": "plugin_callable:add"}, "plugin_callable")
    function = found.functions["plus"]
    assert (function.call({"a": 1}, {"b": 2}), function.doc, function.takes) == (3, "Adds.", "names")  # type: ignore[misc]
    assert function.fingerprint
    assert found.broken == {}
    assert "sum" in found.functions


def test_a_function_object_keeps_what_it_says(install: Install) -> None:
    source = (
        "from rebaser.dvu.functions import Function\n"
        "TWICE = Function(name='twice', call=lambda values, params: values * 2, doc='Twice.', takes='values')\n"
    )
    function = install(source, {"any": "plugin_object:TWICE"}, "plugin_object").functions["twice"]
    assert (function.call([1], {}), function.doc, function.takes) == ([1, 1], "Twice.", "values")  # type: ignore[misc]


def test_a_vector_form_is_used_for_many_and_its_source_counts(install: Install, tmp_path: Path) -> None:
    source = (
        "import numpy as np\n"
        "from rebaser.dvu.functions import Function\n"
        "from plugin_vector_rules import discounted\n"
        "discounted = Function(name='discounted', vector=discounted)\n"
    )
    rules = "def discounted(inputs, params):\n    return inputs['price'] * (1 - params['discount'])\n"
    prints = []
    for rule in (rules, rules + "# changed\n"):
        (tmp_path / "plugin_vector_rules.py").write_text(rule)
        known = install(source, {"d": "plugin_vector:discounted"}, "plugin_vector")
        prints.append(known.functions["discounted"].fingerprint)
    assert prints[0] != prints[1]
    packet = PacketBuilder(
        1, fingerprint.code(), known.fingerprints(["discounted"]), constants=[float(at) for at in range(90)]
    )
    packet.templates = [DefinitionTemplate("discounted", (("price", -1),), {"discount": 0.5})]
    packet.template, packet.refs = [0] * 90, [~at for at in range(90)]
    packet.dirty, packet.old = bytearray([1] * 90), [NEVER_COMPUTED] * 90
    [data] = evaluate_packet(packet.encode(), known)
    assert Results.decode(data).values.tolist() == [at / 2 for at in range(90)]


@pytest.mark.parametrize(
    ("source", "value", "reason"),
    [
        ("import nothing_of_that_name", "{}:f", "ModuleNotFoundError"),
        ("raise RuntimeError('broken')", "{}:f", "RuntimeError: broken"),
        ("import sys; sys.exit(3)", "{}:f", "SystemExit"),
        ("f = 5", "{}:f", "neither a Function nor callable"),
        ("from rebaser.dvu.functions import Function\nf = Function(name='f')", "{}:f", "neither call nor vector"),
        ("", "{}:f", "AttributeError"),
        ("f = (", "{}:f", "SyntaxError"),
    ],
)
def test_one_that_does_not_load_is_reported_and_the_rest_works(
    install: Install, source: str, value: str, reason: str
) -> None:
    module = "plugin_" + str(abs(hash(source)))
    with capture_logs() as logs:
        found = install(source, {"bad": value.format(module), "good": "builtins:len"}, module)
    assert reason in found.broken["bad"]
    assert "bad" not in found.functions
    assert "good" in found.functions
    assert [(entry["event"], entry["plugin"]) for entry in logs] == [("plugin_not_loaded", "bad")]


def test_a_built_in_cannot_be_replaced(install: Install) -> None:
    found = install("f = len", {"sum": "plugin_sum:f"}, "plugin_sum")
    assert "there is already a function 'sum'" in found.broken["sum"]
    assert found.functions["sum"] is registry().functions["sum"]


def test_functions_are_added_for_a_while_and_never_taken_for_each_other() -> None:
    before, code = registry(), identity()
    first = Function(name="added", call=lambda inputs, _: inputs["x"] + 1)
    second = Function(name="added", call=lambda inputs, _: inputs["x"] + 2)
    with added([first]):
        one = registry()
        assert computed(one, [1], "added").values.tolist() == [2]
        with added([first]), pytest.raises(ValueError, match="already a function 'added'"), added([second]):
            pass
        assert registry().functions["added"] == one.functions["added"]
    assert registry() is before
    with added([second]):
        assert computed(registry(), [1], "added").values.tolist() == [3]
        assert one.functions["added"].fingerprint not in ("", registry().functions["added"].fingerprint)
        assert identity() == code, "Spark's workers do not have it"
    with pytest.raises(ValueError, match="already a function 'sum'"), added([Function(name="sum", call=max)]):
        pass
    assert registry() is before


def test_the_fingerprint_changes_with_source_and_version(install: Install) -> None:
    prints = [
        install(source, {"f": "plugin_print:f"}, "plugin_print", version).functions["f"].fingerprint
        for source, version in [
            ("def f(i, p): return 1\n", "1.0"),
            ("def f(i, p): return 1\n", "1.0"),
            ("def f(i, p): return 2\n", "1.0"),
            ("def f(i, p): return 2\n", "1.1"),
        ]
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_a_process_finds_what_is_installed(install: Install, tmp_path: Path) -> None:
    """All steps run in a separate process: metadata on the path, registry, evaluation."""
    install("def f(inputs, params):\n    return inputs['a'] * 2\n", {"double": "plugin_process:f"}, "plugin_process")
    program = (
        "from rebaser.dvu.functions import registry\n"
        "print(registry().functions['double'].call({'a': 21}, {}), dict(registry().broken))\n"
    )
    path = [str(tmp_path), str(Path(__file__).parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "42 {}\n"


@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit('x')", "Own('no')"])
@pytest.mark.parametrize("form", ["call", "vector"])
def test_what_is_no_exception_fails_its_own_value_only(install: Install, error: str, form: str) -> None:
    module = "plugin_raises_" + str(abs(hash((error, form))))
    source = (
        "from rebaser.dvu.functions import Function\n"
        "class Own(BaseException): pass\n"
        "def one(x):\n"
        f"    if x == 'bad': raise {error}\n"
        "    return x\n"
        "def call(inputs, params): return one(inputs['x'])\n"
        "def vector(inputs, params): return [one(x) for x in inputs['x']]\n"
        f"F = Function(name='f', {form}={form})\n"
    )
    known = install(source, {"f": f"{module}:F"}, module)
    results = computed(known, ["good", "bad", "other"] * 20, "f")
    assert results.values.tolist() == ["good", IN_ERROR, "other"] * 20
    name, _, text = error.rstrip(")").partition("(")
    words = text.strip("'")
    assert results.faults == [("failed", f"{name}: {words}")] * 20


def test_an_interrupt_from_outside_fails_nothing(install: Install) -> None:
    source = (
        "seen = []\n"
        "def f(inputs, params):\n"
        "    seen.append(1)\n"
        "    if len(seen) == 1: raise KeyboardInterrupt\n"
        "    return 5\n"
    )
    known = install(source, {"f": "plugin_interrupted:f"}, "plugin_interrupted")
    assert computed(known, [1], "f").values.tolist() == [5]


@pytest.mark.parametrize("code", ["7", "'own'", "None"])
def test_a_fault_of_a_plug_in_can_always_be_stored(install: Install, code: str) -> None:
    module = "plugin_fault_" + str(abs(hash(code)))
    source = (
        "from rebaser.dvu.functions import FunctionError\n"
        f"def f(inputs, params): raise FunctionError('bad \\ud800', {code})\n"
    )
    known = install(source, {"f": f"{module}:f"}, module)
    assert computed(known, [1], "f").faults == [("own" if "own" in code else "failed", "bad  ")]


@pytest.mark.parametrize("form", ["call", "vector"])
def test_what_a_plug_in_does_with_its_inputs_changes_no_other_value(install: Install, form: str) -> None:
    source = (
        "from rebaser.dvu.functions import Function\n"
        "def call(inputs, params):\n"
        "    inputs['x'].append(1)\n"
        "    inputs['x'][0]['a'] += 1\n"
        "    params['p'].append(1)\n"
        "    return [inputs['x'][0]['a'], len(inputs['x']), len(params['p'])]\n"
        "def vector(inputs, params): return [call({'x': one}, {'p': [*params['p']]}) for one in inputs['x']]\n"
        f"F = Function(name='f', {form}={form})\n"
    )
    known = install(source, {"f": f"plugin_mutates_{form}:F"}, f"plugin_mutates_{form}")
    given: list[Json] = [[{"a": 1}]] * 40
    values = computed(known, given, "f", "list", p=[]).values.tolist()
    assert values == [[2, 2, 1]] * 40 + [[[{"a": 1}]]] * 40


def test_what_a_plug_in_does_with_its_results_changes_none(install: Install) -> None:
    source = "kept = []\ndef f(inputs, params):\n    kept.append(inputs['x'])\n    return kept\n"
    known = install(source, {"f": "plugin_keeps:f"}, "plugin_keeps")
    values = computed(known, list(range(30)), "f").values.tolist()
    assert values == [list(range(at + 1)) for at in range(30)]


ENDS = """
import os, signal
from rebaser.dvu.functions import Function, FunctionError
def one(x):
    if x == 'exit': os._exit(3)
    if x == 'signal': os.kill(os.getpid(), signal.SIGUSR1)
    if x == 'group': os.killpg(0, signal.SIGKILL)
    if x == 'fault': raise FunctionError('no', 'own')
    if x == 'error': raise SystemExit('out')
    if x == 'nan': return float('nan')
    if x == 'odd': return object()
    return [x, -0.0, 2**63 - 1, {'a': None}]
def call(inputs, params): return one(inputs['x'])
def vector(inputs, params): return [one(x) for x in inputs['x']]
"""


@pytest.mark.parametrize("form", ["call", "vector"])
def test_what_ends_its_process_fails_its_own_value_only(install: Install, form: str) -> None:
    """All other values are the same as without a plug-in that ends its process."""
    module = f"plugin_ends_{form}"
    known = install(f"{ENDS}F = Function(name='f', {form}={form})\n", {"f": f"{module}:F"}, module)
    harmless: list[Json] = [*"abcdefghijklmnopqrst", "fault", "error", "nan", "odd"]
    results = computed(known, harmless, "f", isolate=True)
    expected = computed(known, harmless, "f")
    assert results.values.tolist() == expected.values.tolist()
    assert results.faults == expected.faults
    assert len(results.faults) == 4
    among = computed(known, ["exit", *harmless, "signal", "group", "exit"], "f", isolate=True)
    assert among.values.tolist()[1:-3] == expected.values.tolist()
    ended = "function 'f' ended its process: "
    killed = "signal SIGKILL, which the system sends when a process exceeds a memory limit"
    how = ["exit code 3", "signal SIGUSR1", killed, "exit code 3"]
    own = [(CRASHED, ended + one) for one in how]
    assert among.faults == [own[0], *expected.faults, *own[1:]]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of the children that this process starts."""
    begun: list[int] = []
    fork = os.fork

    def counted() -> int:
        begun.append(fork())
        return begun[-1]

    monkeypatch.setattr(os, "fork", counted)
    return begun


def check_gone(children: list[int]) -> None:
    assert children
    for child in children:  # other children of this process do not count
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def test_a_child_that_lives_is_gone_with_its_packet(install: Install, children: list[int]) -> None:
    known = install("def f(i, p): return i['x']\n", {"f": "plugin_lives:f"}, "plugin_lives")
    assert computed(known, [1, 2], "f", isolate=True).values.tolist() == [1, 2]
    check_gone(children)


def test_what_depends_on_it_fails_too_and_the_child_is_gone(install: Install, children: list[int]) -> None:
    known = install("import os\ndef f(i, p): os._exit(0)\n", {"f": "plugin_ended:f"}, "plugin_ended")
    packet = PacketBuilder(1, fingerprint.code(), known.fingerprints(["f"]), constants=[1])
    packet.templates = [DefinitionTemplate("f", (("x", -1),), {}), DefinitionTemplate("sum", (("x", -1),), {})]
    packet.template, packet.refs = [0, 1, 1], [~0, 0, ~0]
    packet.dirty, packet.old = bytearray([1, 1, 1]), [NEVER_COMPUTED] * 3
    [data] = evaluate_packet(packet.encode(), known, isolate=True)
    results = Results.decode(data)
    assert results.values.tolist() == [IN_ERROR, IN_ERROR, 1]
    assert results.faults == [(CRASHED, "function 'f' ended its process: exit code 0"), 1]
    check_gone(children)
