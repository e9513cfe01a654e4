"""One installation for the tests of each module, and a separate console for each test."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from rebaser.testing import LocalRebaser, local_rebaser
from rebaser_client import RebaserClient
from tests.support.browser import Shared, browser, need_browser
from tests.support.web_console import WebConsole, web_console, workspace


@pytest.fixture(scope="module")  # its server shares metrics and threads with all tests of this process
def installation() -> Iterator[LocalRebaser]:
    with local_rebaser(quiescent_period=1) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
async def shared_browser(anyio_backend: str) -> AsyncIterator[None]:
    async with Shared():
        yield


@pytest.fixture(autouse=True)
def enough_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give searches and first looks the time that they need on a busy machine. Otherwise, an answer has only a part."""
    if "own_nats" in request.fixturenames:  # the test may take NATS away, and would wait for it
        return
    for bound in ("api.dead_letters.SCAN", "api.updates.SCAN", "api.elsewhere.SECONDS", "live.hub.FIRST_LOOK"):
        monkeypatch.setattr(f"rebaser.console.{bound}", 120.0)
    monkeypatch.setattr("rebaser_client.log.scan.MAX_SECONDS", 120.0)


@pytest.fixture
async def console(anyio_backend: str, installation: LocalRebaser) -> AsyncIterator[WebConsole]:
    async with web_console(installation.url) as running:
        yield running


@pytest.fixture
async def acting(anyio_backend: str, installation: LocalRebaser) -> AsyncIterator[WebConsole]:
    """A console that allows actions."""
    async with web_console(installation.url, actions=True) as running:
        yield running


@pytest.fixture
async def client(anyio_backend: str, installation: LocalRebaser) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(installation.url) as connected:
        yield connected


@pytest.fixture
def ws() -> str:
    return workspace()


@pytest.fixture
async def running(anyio_backend: str) -> AsyncIterator[Any]:
    """A browser; without one, the test is skipped."""
    need_browser()
    async with browser() as started:
        yield started
