"""A request that is too large for a message goes to the server in a blob, is applied completely, and its commit uses a
blob."""

import pytest

from rebaser_client import RebaserClient, Set, Success

pytestmark = pytest.mark.anyio


async def test_a_large_request_is_applied_whole(client: RebaserClient) -> None:
    updates = [Set(f"v{number}", "x" * 100) for number in range(20_000)]
    response = await client.enqueue_updates_with_reply("large", "main", updates)
    assert isinstance(response.status, Success)
    assert response.status.performed == len(updates)
    state = await client.state("large", "main")
    assert len(state.cells) == len(updates)
    assert all(cell.value == "x" * 100 for cell in state.cells.values())
