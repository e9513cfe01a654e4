"""A server with a Spark cluster: a master, two workers and a Connect server."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from rebaser.dvu.spark import requirements
from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Commit, Derive, RebaserClient, Set
from tests.spark.conftest import Down
from tests.support.bare_python import bare_python
from tests.support.fleet import launched
from tests.support.standalone import Standalone, standalone

pytestmark = [pytest.mark.anyio, pytest.mark.spark]

LARGE = 10_500
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
    """A cluster whose workers have no code of Rebaser, and only the packages that the guide names."""
    folder = tmp_path_factory.mktemp("standalone")
    packages = [name.replace("-", "_") for name in requirements.REQUIRED_PACKAGES + requirements.STORE_PACKAGES]
    python = bare_python(folder / "python", only=[*packages, "google"])
    with standalone(folder, python) as cluster:
        yield cluster


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder in which the plug-in `gate` is installed."""
    info = tmp_path / "plugin" / "gate_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gate-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rebaser.functions]\ngate = gate_plugin:gate\n")
    (info.parent / "gate_plugin.py").write_text(PLUGIN)
    return info.parent


async def one_that_began(folder: Path) -> str:
    """Return the folder of the worker that first computes `gate`."""

    def places() -> list[str]:
        return [text for path in folder.glob("began-*") if (text := path.read_text())]

    while not places():  # noqa: ASYNC110 - other processes tell nobody
        await anyio.sleep(0.02)
    return places()[0]


@pytest.mark.long  # a minute; `test_remote` computes without Java, and `test_engine` kills workers
@pytest.mark.timeout(600)
async def test_a_server_without_java_uses_a_cluster_and_a_worker_is_killed(
    cluster: Standalone, own_nats: EmbeddedNats, plugin: Path, tmp_path: Path
) -> None:
    """The workers get the code of Rebaser and the plug-in from the server. The work of the dead worker is repeated, and
    its results are committed once."""
    python = bare_python(tmp_path / "python", without=("py4j",), extra=(plugin,), java=False)
    blobs = f"file://{tmp_path}/shared"
    sums = [Derive(f"sum/{at}", "sum", {"values": ("a", f"b/{at}")}) for at in range(LARGE)]
    large = [Set("a", 1), *(Set(f"b/{at}", at) for at in range(LARGE)), *sums]

    async def derive(change_set: str, *updates: Set | Derive) -> None:
        await client.enqueue_updates_with_reply("shop", change_set, updates, wait="derived", timeout=240)

    with anyio.fail_after(400):
        async with (
            launched(own_nats.url, "one", python=str(python), spark=cluster.url, blobs=blobs) as server,
            RebaserClient.connect(own_nats.url, blobs=blobs) as client,
        ):
            await server.wait_for("dvu_ready", limit=240)
            lack = await server.wait_for("spark_workers_lack")
            assert lack["packages"].endswith(": numba>=0.61")
            assert server.count("dvu_plugin_not_on_workers") == server.count("dvu_store_not_on_workers") == 0

            gated = (Set("n", 21), Derive("twice", "gate", {"n": "n"}, {"folder": str(tmp_path)}))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(derive, "one", *gated)
                tasks.start_soon(derive, "two", *gated)
                cluster.worker_at(await one_that_began(tmp_path)).kill()
                (tmp_path / "go").touch()
            for change_set in ("one", "two"):
                assert (await client.values("shop", change_set))["twice"].value == 42
                commits = [entry.content async for entry in client.entries("commits", "shop", change_set)]
                assert [commit.kind for commit in commits if isinstance(commit, Commit)] == ["rebase", "dvu"]

            # The structure goes through the blob store once, and is still there for the second update.
            await derive("large", *large)  # type: ignore[arg-type]
            await derive("large", Set("a", 2))
            values = await client.values("shop", "large")
            assert [values[f"sum/{at}"].value for at in range(LARGE)] == [at + 2 for at in range(LARGE)]
    assert server.process.returncode == 0
    assert any((tmp_path / "shared").rglob("sha256/*/*"))


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_workers_without_what_cannot_be_sent_are_told_all_of_it(tmp_path: Path, down: Down) -> None:
    python = bare_python(tmp_path / "python", without=("rebaser", "cbor2", "pyarrow"))
    with standalone(tmp_path, python, workers=1) as cluster:
        reason = await down(cluster.url)
    assert "cbor2>=" in reason
    assert ", pyarrow>=" in reason
    assert "numpy" not in reason
