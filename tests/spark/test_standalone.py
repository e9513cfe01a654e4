"""A server on a cluster: a master, two workers and a Connect server of their own."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Commit, Derive, RebaserClient, Set
from tests.acceptance.fleet import launched
from tests.spark.bare import bare_python
from tests.spark.standalone import Standalone, standalone

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

PLUGIN = '''
"""Doubles a number, once the test says so."""
import os
import time
from pathlib import Path

def gate(inputs, params):
    Path(params["folder"], f"began-{os.getpid()}").write_text(os.getcwd())
    while not Path(params["folder"], "go").exists():
        time.sleep(0.02)
    return inputs["n"] * 2
'''


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """One whose workers have nothing of ours, and no compiler."""
    folder = tmp_path_factory.mktemp("standalone")
    python = bare_python(folder / "python", without=("rebaser", "numba", "llvmlite"))
    with standalone(folder, python) as cluster:
        yield cluster


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder with the plug-in `gate`, installed."""
    info = tmp_path / "plugin" / "gate_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gate-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rebaser.functions]\ngate = gate_plugin:gate\n")
    (info.parent / "gate_plugin.py").write_text(PLUGIN)
    return info.parent


async def one_that_began(folder: Path) -> str:
    """Where the first worker that computes `gate` runs."""

    def places() -> list[str]:
        return [text for path in folder.glob("began-*") if (text := path.read_text())]

    while not places():  # noqa: ASYNC110 - other processes tell nobody
        await anyio.sleep(0.02)
    return places()[0]


async def test_a_server_without_java_uses_a_cluster_and_a_worker_is_killed(
    cluster: Standalone, own_nats: EmbeddedNats, plugin: Path, tmp_path: Path
) -> None:
    """The workers get our code and the plug-in from the server; what the dead one had is computed again, and lands
    once."""
    python = bare_python(tmp_path / "python", without=("py4j",), extra=(plugin,), java=False)
    blobs = f"file://{tmp_path}/shared"
    large = [Set(f"text/{at}", chr(97 + at) * 200_000) for at in range(8)]
    texts = [one.id for one in large]

    async def derive(change_set: str) -> None:
        updates = [Set("n", 21), Derive("twice", "gate", {"n": "n"}, {"folder": str(tmp_path)})]
        await client.enqueue_updates_with_reply("shop", change_set, updates, wait="derived", timeout=240)

    with anyio.fail_after(280):
        async with (
            launched(own_nats.url, "one", python=str(python), spark=cluster.url, blobs=blobs) as server,
            RebaserClient.connect(own_nats.url, blobs=blobs) as client,
        ):
            await server.wait_for("dvu_ready")
            lack = await server.wait_for("spark_workers_lack")
            assert "numba>=" in lack["packages"]
            assert server.count("dvu_plugin_not_on_workers") == 0

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(derive, "one")
                tasks.start_soon(derive, "two")
                place = await one_that_began(tmp_path)
                cluster.worker_at(place).kill()
                (tmp_path / "go").touch()
            await client.enqueue_updates_with_reply(
                "shop", "large", [*large, Derive("all", "concat", {"values": texts[:1]})], wait="derived", timeout=240
            )
            for change_set in ("one", "two"):
                assert (await client.values("shop", change_set))["twice"].value == 42
                commits = [entry.content async for entry in client.entries("commits", "shop", change_set)]
                kinds = [commit.kind for commit in commits if isinstance(commit, Commit)]
                assert kinds == ["rebase", "dvu"]
            assert (await client.values("shop", "large"))["all"].value == "a" * 200_000
    assert server.process.returncode == 0
    assert any((tmp_path / "shared").rglob("sha256/*/*"))
