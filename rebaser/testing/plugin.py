"""Defines fixtures for pytest. They are available wherever Rebaser is installed. The first test that uses one of them
starts the servers.

Each run of pytest loads this module, so it imports only pytest and parts of the standard library that pytest imports.
"""

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rebaser.testing.local import LocalRebaser
    from rebaser.testing.workspace_clients import BlockingWorkspaceClient, WorkspaceClient

MARKER = (
    "rebaser(spark=False): with spark=True, `rebaser` and `rebaser_sync` compute derived values on an embedded Spark"
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def rebaser_server() -> "Iterator[LocalRebaser]":
    """Yield an installation that all tests of the run share: a `LocalRebaser`."""
    from rebaser.testing.local import local_rebaser  # noqa: PLC0415 - slow to import

    with local_rebaser() as installation:
        yield installation


@pytest.fixture(scope="session")
def rebaser_spark_server() -> "Iterator[LocalRebaser]":
    """Yield an installation like `rebaser_server`, but with an embedded Spark, which takes seconds to start."""
    from rebaser.testing.local import local_rebaser  # noqa: PLC0415 - slow to import

    with local_rebaser(spark=True) as installation:
        yield installation


@pytest.fixture
def rebaser_workspace() -> str:
    """Return the name of a workspace that no other test uses."""
    import secrets  # noqa: PLC0415 - pytest does not import it

    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
def rebaser_sync(request: pytest.FixtureRequest, rebaser_workspace: str) -> "Iterator[BlockingWorkspaceClient]":
    """Yield a blocking client. Its `workspace` is the name of a workspace that no other test uses."""
    from rebaser.testing.workspace_clients import BlockingWorkspaceClient  # noqa: PLC0415 - slow to import

    installation = _installation(request)
    with BlockingWorkspaceClient.connect(installation.url, prefix=installation.prefix) as client:
        client.workspace = rebaser_workspace
        yield client


@pytest.fixture
def rebaser(request: pytest.FixtureRequest, rebaser_workspace: str) -> "Iterator[WorkspaceClient]":
    """Yield a client for asyncio. Its `workspace` is the name of a workspace that no other test uses."""
    from rebaser.testing.workspace_clients import WorkspaceClient  # noqa: PLC0415 - slow to import

    installation = _installation(request)
    client = WorkspaceClient(installation.url, installation.prefix, rebaser_workspace)
    yield client
    client.close()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test that uses the fixture `rebaser`, unless another plug-in, such as that of anyio or
    pytest-asyncio, runs it."""
    if "rebaser" not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    import asyncio  # noqa: PLC0415 - pytest does not import it

    given: dict[str, Any] = pyfuncitem.funcargs

    async def run() -> None:
        try:
            await pyfuncitem.obj(**{name: given[name] for name in inspect.signature(pyfuncitem.obj).parameters})
        finally:
            await given["rebaser"].aclose()

    asyncio.run(run())
    return True


def _installation(request: pytest.FixtureRequest) -> "LocalRebaser":
    """Return the installation that the marker of the test asks for."""
    marker = request.node.get_closest_marker("rebaser")
    if marker is not None and (marker.args or set(marker.kwargs) - {"spark"}):
        raise pytest.UsageError("the marker is rebaser(spark=True) or rebaser(spark=False), without other arguments")
    spark = marker is not None and marker.kwargs.get("spark", False)
    installation: LocalRebaser = request.getfixturevalue("rebaser_spark_server" if spark else "rebaser_server")
    return installation
