"""A server with a remote Spark needs no Java, and of PySpark only its Connect client."""

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import anyio
import numpy as np
import pytest
from packaging.requirements import Requirement

from rebaser.dvu.functions.registry import FunctionRegistry, builtins
from rebaser.dvu.spark import requirements, session_manager
from rebaser.dvu.spark.engine import Engine, EngineSettings
from rebaser.dvu.wire.structure import Structure
from rebaser.embedded import spark
from rebaser.embedded.spark import check_java
from rebaser_client.blobs.object_store import ObjectStoreBlobs
from rebaser_core.errors import ConfigError
from tests.conftest import Events
from tests.spark.conftest import Down

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

PROGRAM = r"""
import sys
from importlib.abc import MetaPathFinder

class Without(MetaPathFinder):
    # What the package pyspark-client leaves out.
    def find_spec(self, name, path=None, target=None):
        if name in ("py4j", "pyspark.core", "pyspark.java_gateway") or name.startswith(("py4j.", "pyspark.core.")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())

import anyio
from rebaser.dvu.spark.engine import Engine, EngineSettings
from tests.support.packets import small

async def main():
    made, packets = small(1)
    async with Engine(sys.argv[1], EngineSettings(parallelism=1)) as engine:
        [results] = await engine.evaluate(packets, label="remote")
    made.absorb(results)
    print([one.value for one in made.computed()])
    assert not any(name == "py4j" or name.startswith("pyspark.core") for name in sys.modules)

anyio.run(main)
"""


async def test_a_remote_spark_needs_neither_java_nor_the_whole_of_pyspark(url: str, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    with anyio.fail_after(240):
        done = await anyio.run_process([sys.executable, "-c", PROGRAM, url], check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout.split(b"\n")[-2] == b"[2]"


async def test_a_plug_in_that_the_workers_have_not_is_named(
    url: str, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other values are computed."""
    found = builtins()
    found["tax"] = replace(found["sum"], name="tax", fingerprint="of a plug-in that is only here")
    monkeypatch.setattr(session_manager, "registry", lambda: FunctionRegistry(found, {}))
    with anyio.fail_after(240):
        async with Engine(url, EngineSettings(parallelism=1)) as engine:
            await engine.ready.wait()
    [told] = events.named("dvu_plugin_not_on_workers")
    assert told["plugin"] == "tax"
    assert "install the plug-in" in told["hint"]


async def test_all_that_workers_lack_is_named_at_once(url: str, down: Down, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = [Requirement("no-such-package>=2"), Requirement("numpy>=99"), Requirement("cbor2")]
    monkeypatch.setattr(requirements, "required", lambda **_: (lacking, []))
    reason = await down(url)
    assert reason.startswith("Spark's workers lack packages (")
    assert ": no-such-package>=2, numpy>=99 (installed: " in reason
    assert "cbor2" not in reason
    assert "PYSPARK_PYTHON" in reason


async def test_workers_of_another_python_are_named(url: str, down: Down, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.connect.udf.sys", SimpleNamespace(version_info=(3, 99, 0)))
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    expected = f"Spark's workers run Python {here} and this server 3.99: set PYSPARK_PYTHON to a Python 3.99"
    assert (await down(url)).startswith(expected)


async def test_a_store_that_workers_do_not_reach_is_named(
    url: str, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = Structure.make(
        2, session_manager._PROBE_STRUCTURE.templates, np.zeros(1, np.int32), np.array([1, 0], np.int32)
    )
    # A structure that workers cannot have cached in an earlier test.
    monkeypatch.setattr(session_manager, "_PROBE_STRUCTURE", unknown)
    blobs = ObjectStoreBlobs(f"file://{tmp_path}/here")
    for where, told in ((f"file://{tmp_path}/elsewhere", 1), (f"file://{tmp_path}/here", 1)):
        settings = EngineSettings(parallelism=1, blobs=blobs, blobs_url=where)
        with anyio.fail_after(240):
            async with Engine(url, settings) as engine:
                await engine.ready.wait()
        assert len(events.named("dvu_store_not_on_workers")) == told


def test_an_embedded_spark_needs_the_whole_of_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package pyspark-client has no Spark that could be started."""
    check_java()
    monkeypatch.setattr(spark, "find_spec", lambda name: ModuleSpec(name, None, origin=str(tmp_path / "__init__.py")))
    with pytest.raises(ConfigError) as refused:
        check_java()
    assert "pip install 'rebaser[spark]'" in refused.value.message
