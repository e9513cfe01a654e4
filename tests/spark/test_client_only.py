"""A server that is installed with the extra `spark-client` from PyPI uses a Spark elsewhere, of a newer or older
version."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Derive, RebaserClient, Set
from tests.support.standalone import standalone

pytestmark = [pytest.mark.anyio, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A virtual environment without Spark's own package."""
    uv = shutil.which("uv")
    assert uv is not None
    folder = tmp_path / "venv"
    given = os.environ | {"VIRTUAL_ENV": str(folder)}
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
    subprocess.run([uv, "pip", "install", "-q", f"{ROOT}[server,spark-client]"], check=True, env=given)
    names = subprocess.run([uv, "pip", "list", "--format", "json"], check=True, env=given, capture_output=True).stdout
    versions = {one["name"]: one["version"] for one in json.loads(names)}
    assert "pyspark-client" in versions
    assert "pyspark" not in versions
    return folder / "bin" / "rebaser"


async def test_a_server_derives_with_the_client_alone(installed: Path, tmp_path: Path, own_nats: EmbeddedNats) -> None:
    with standalone(tmp_path, Path(sys.executable), workers=1) as spark:
        server = await asyncio.create_subprocess_exec(
            *(str(installed), "serve", "--nats", own_nats.url, "--spark", spark.url),
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        assert server.stderr is not None
        try:
            with anyio.fail_after(300):
                while b"server_ready" not in (line := await server.stderr.readline()):
                    assert line
                async with RebaserClient.connect(own_nats.url) as client:
                    updates = [Set("a", 21), Derive("b", "cel", {"a": "a"}, {"expr": "a * 2"})]
                    await client.enqueue_updates_with_reply("ws", "cs", updates, wait="derived", timeout=240)  # type: ignore[arg-type]
                    found = await client.value("ws", "cs", "b")
        finally:
            server.terminate()
            await server.communicate()
    assert found is not None
    assert found.value == 42
