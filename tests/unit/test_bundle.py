"""The code that a remote Spark is sent, and how its workers use it in a Python without any of Rebaser's packages."""

import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from io import BytesIO
from pathlib import Path

import pytest
from pyspark import cloudpickle

from rebaser.dvu.functions.registry import identity
from rebaser.dvu.functions.registry import installed as installed_functions
from rebaser.dvu.spark import bundle as shipping
from rebaser.dvu.spark import requirements
from rebaser.dvu.spark.requirements import WorkerPackages
from tests.support.bare_python import bare_python
from tests.support.packets import small

WORKER = """
import os, pickle, sys
import pyarrow as pa
import pyspark
from pyspark.core.files import SparkFiles
SparkFiles._root_directory, SparkFiles._is_running_on_worker = os.getcwd(), True
evaluate = pickle.load(open("function", "rb"))
columns = [pa.array([7], pa.int32()), pa.array([open("packet", "rb").read()]), pa.array([""]), [False]]
batch = pa.record_batch(columns, names=["index", "packet", "folder", "isolate"])
for _ in range(2):
    [result] = evaluate([batch])
    assert result.column("index").to_pylist() == [7]
from rebaser.dvu.wire.packet import Results
print(Results.decode(result.column("result")[0].as_py()).values.tolist(), sys.modules["rebaser"].__file__)
"""


@pytest.fixture
def fresh() -> Iterator[None]:
    """Clear results that are cached per process, before and after the test."""
    for kept in (installed_functions, identity, shipping.bundle):
        kept.cache_clear()
    yield
    for kept in (installed_functions, identity, shipping.bundle):
        kept.cache_clear()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without Rebaser's packages."""
    return bare_python(tmp_path_factory.mktemp("bare"), without=("rebaser",))


def installed(folder: Path, files: dict[str, str], metadata: str = "") -> None:
    """Install a plug-in `twice` in a folder on the path."""
    info = folder / "some_plugin-1.0.dist-info"
    described = {
        "METADATA": f"Metadata-Version: 2.1\nName: some-plugin\nVersion: 1.0\n{metadata}",
        "entry_points.txt": "[rebaser.functions]\ntwice = some_plugin:twice\n",
        "RECORD": "".join(f"{name},,\n" for name in files),
    }
    for name, text in files.items() | {f"{info.name}/{name}": text for name, text in described.items()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def work(python: Path, folder: Path, home: Path, first: str = "") -> str:
    """Let a worker compute 1 + 1 with only the code that it was sent. Return the path from which it imported
    Rebaser."""
    bundle = shipping.bundle()
    _, [packet] = small(1)
    folder.mkdir()
    (folder / bundle.name).write_bytes(bundle.data)
    (folder / "function").write_bytes(cloudpickle.dumps(bundle.map_function()))
    (folder / "packet").write_bytes(packet)
    environment = {"XDG_CACHE_HOME": str(home)}
    command = [str(python), "-c", first + WORKER]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    result, place = done.stdout.split()
    assert result == "[2]"
    return place


def test_a_worker_without_our_code_computes_with_what_it_was_sent(python: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    stem = shipping.bundle().name.removesuffix(".zip")
    places = {work(python, tmp_path / name, home) for name in ("first", "second")}
    assert places == {f"{home}/rebaser/{stem}/rebaser/__init__.py"}  # the code was unpacked once
    assert [path.name for path in (home / "rebaser").iterdir() if not path.name.startswith("kernel")] == [stem]


def test_a_worker_without_a_home_unpacks_beside_the_archive(python: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = work(python, tmp_path / "executor", tmp_path / "file" / "home")
    assert place.startswith(f"{tmp_path}/executor/rebaser-")


def test_another_release_that_the_daemon_has_loaded_gives_way(python: Path, tmp_path: Path) -> None:
    older = tmp_path / "older" / "rebaser"
    (older / "dvu" / "worker").mkdir(parents=True)
    for name in ("__init__.py", "dvu/__init__.py", "dvu/worker/__init__.py"):
        (older / name).touch()
    (older / "dvu" / "worker" / "evaluate.py").write_text(
        "def evaluate_batches(batches):\n    raise AssertionError('older')\n"
    )
    load = f"import sys\nsys.path.insert(0, {str(older.parent)!r})\nimport rebaser.dvu.worker.evaluate\n"
    assert work(python, tmp_path / "executor", tmp_path / "home", load).startswith(f"{tmp_path}/home/")


def test_the_very_code_that_is_loaded_is_used(tmp_path: Path) -> None:
    load = f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    load += "from rebaser.dvu.functions.registry import registry\nregistry()\n"
    here = bare_python(tmp_path / "bare", without=("rebaser",))
    assert not work(here, tmp_path / "executor", tmp_path / "home", load).startswith(
        f"{tmp_path}/home/rebaser/rebaser-"
    )


@pytest.mark.usefixtures("fresh")
def test_equal_code_makes_equal_archives_and_a_plug_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = shipping.bundle()
    shipping.bundle.cache_clear()
    assert shipping.bundle() == bare
    assert not any("__pycache__" in name for name in zipfile.ZipFile(BytesIO(bare.data)).namelist())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_plugin", raising=False)
    files = {"some_plugin/__init__.py": "from some_plugin.more import twice\n", "some_plugin/table.csv": "1,2\n"}
    files["some_plugin/more.py"] = "def twice(inputs, params):\n    return 2 * inputs['a']\n"
    installed(tmp_path, files, "Requires-Dist: numpy>=99\nRequires-Dist: nothing-of-it; extra == 'more'\n")
    shipping.bundle.cache_clear()
    installed_functions.cache_clear()
    bundle = shipping.bundle()
    assert bundle.name != bare.name
    added = set(zipfile.ZipFile(BytesIO(bundle.data)).namelist()) - set(zipfile.ZipFile(BytesIO(bare.data)).namelist())
    described = {f"some_plugin-1.0.dist-info/{name}" for name in ("METADATA", "entry_points.txt")}
    assert added == {*files, *described}
    assert "some_plugin" in bundle.modules
    assert [str(one) for one in requirements.plugin_requirements(bundle)] == ["numpy>=99"]


@pytest.mark.usefixtures("fresh")
def test_a_plug_in_with_native_code_is_not_sent_but_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "some_plugin", raising=False)
    source = "def twice(inputs, params):\n    return 2 * inputs['a']\n"
    installed(tmp_path, {"some_plugin/__init__.py": source, f"some_plugin/fast{EXTENSION_SUFFIXES[0]}": ""})
    bundle = shipping.bundle()
    assert "some_plugin" not in bundle.modules
    assert [str(one) for one in requirements.plugin_requirements(bundle)] == ["some-plugin==1.0"]


def test_all_that_workers_lack_is_named_at_once_by_host() -> None:
    needed, useful = requirements.required(store=True)
    asked = [one.name for one in needed + useful]
    told = requirements.parse_reply(requirements.probe([*asked, "no-such-package"])(0))
    assert requirements.missing([told], needed + useful) == ""
    there = {name: importlib.metadata.version(name) for name in asked}
    bare = {"numpy": "1.26.4", "pyarrow": there["pyarrow"], "structlog": there["structlog"], "cel-expr-python": "0.0.1"}
    found = [WorkerPackages("b", bare), WorkerPackages("a", bare), WorkerPackages("c", there)]
    lacks = requirements.missing(found, needed)
    assert lacks.startswith("a, b: cbor2>=6.2, cel-expr-python==")
    assert "(installed: 0.0.1), numpy>=2.0 (installed: 1.26.4)" in lacks
    assert "pyarrow" not in lacks
    assert requirements.missing([WorkerPackages("c", {})], useful).startswith("c: numba>=")
    assert "obstore>=" in requirements.missing([WorkerPackages("c", {})], useful)
