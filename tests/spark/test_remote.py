"""A server whose Spark is remote has no use for Java, nor for more of PySpark than its Connect client."""

import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from rebaser.dvu import keeper
from rebaser.dvu.engine import Engine, EngineSettings
from rebaser.dvu.functions.registry import Registry, builtins
from tests.conftest import Events

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
from rebaser.dvu.engine import Engine, EngineSettings
from tests.spark.packets import small

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
    """All else is computed."""
    found = builtins()
    found["tax"] = replace(found["sum"], name="tax", fingerprint="of a plug-in that is only here")
    monkeypatch.setattr(keeper, "registry", lambda: Registry(found, {}))
    with anyio.fail_after(240):
        async with Engine(url, EngineSettings(parallelism=1)) as engine:
            await engine.ready.wait()
    [told] = events.named("dvu_plugin_not_on_workers")
    assert told["plugin"] == "tax"
    assert "install the plug-in" in told["hint"]
