"""One NATS server and two Rebaser servers for all tests that break nothing; other tests start their own."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from rebaser.embedded.nats import embedded_nats
from rebaser.embedded.spark import Jvm
from rebaser_client import RebaserClient
from tests.support.fleet import ServerProcess, servers


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package")
async def fleet_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder: Path = tmp_path_factory.mktemp("fleet")
    async with embedded_nats(folder) as nats:
        yield nats.url


@pytest.fixture(scope="package")
async def spark_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A Spark Connect server apart from all Rebaser servers. One is enough, and it survives when they are killed."""
    jvm = Jvm("local[1]", memory="1g", scratch=tmp_path_factory.mktemp("spark"))
    await to_thread.run_sync(jvm.start)
    try:
        yield jvm.url
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(jvm.stop)


@pytest.fixture(scope="package")
async def fleet(fleet_url: str, spark_url: str) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    """Two Rebaser servers on one NATS server, started as a user starts them. Their concurrency is small, so that both
    have to take change sets."""
    settings = {"python": sys.executable, "spark": spark_url, "concurrency": 3, "quiescent_period": 2, "retry_for": 2}
    async with servers(fleet_url, "one", "two", **settings) as (one, two):  # type: ignore[arg-type]
        yield one, two


@pytest.fixture
async def client(fleet_url: str, fleet: object) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(fleet_url) as connected:
        yield connected
