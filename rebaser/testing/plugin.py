"""Defines fixtures for pytest. They are available wherever Rebaser is installed. The first test that uses one of them
starts the servers.

Each run of pytest loads this module, so it imports only pytest.
"""

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rebaser.testing.local import LocalRebaser


@pytest.fixture(scope="session")
def rebaser_server() -> "Iterator[LocalRebaser]":
    """Yield an installation that all tests of the run share: a `LocalRebaser`."""
    from rebaser.testing.local import local_rebaser  # noqa: PLC0415 - slow to import

    with local_rebaser() as installation:
        yield installation


@pytest.fixture
def rebaser_workspace() -> str:
    """Return the name of a workspace that no other test uses."""
    return f"test-{secrets.token_hex(8)}"
