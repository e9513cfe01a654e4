"""Fixtures for pytest. They exist wherever Rebaser is installed; a test that asks for one starts the servers.

This module is loaded by each run of pytest, so it imports nothing but pytest.
"""

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rebaser.testing.local import LocalRebaser


@pytest.fixture(scope="session")
def rebaser_server() -> "Iterator[LocalRebaser]":
    """An installation for the whole run: its `url`, a `client`, and `settle`."""
    from rebaser.testing.local import local_rebaser  # noqa: PLC0415 - slow to import

    with local_rebaser() as installation:
        yield installation


@pytest.fixture
def rebaser_workspace() -> str:
    """The name of a workspace that no other test uses."""
    return f"test-{secrets.token_hex(8)}"
