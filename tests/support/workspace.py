"""Edits and reads change sets of the workspace `ws`, and checks refusals."""

from collections.abc import Awaitable
from typing import Any

import pytest

from rebaser_client import RebaserClient, RequestRejected, Update
from rebaser_client.log.positions import At
from tests.support.history import commit_of


async def edit(client: RebaserClient, name: str, *updates: Update, **options: Any) -> int:
    """Edit the change set, and return the sequence of the commit. `options` are those of
    `RebaserClient.enqueue_updates_with_reply`."""
    return commit_of(await client.enqueue_updates_with_reply("ws", name, updates, **options))


async def stands(client: RebaserClient, name: str, at: At | None = None) -> dict[str, object]:
    """Return the values of the change set by id."""
    return {id_: value.value for id_, value in (await client.values("ws", name, at=at)).items()}


async def refusal(request: Awaitable[object]) -> str:
    """Return the code with which a request is rejected."""
    with pytest.raises(RequestRejected) as caught:
        await request
    return caught.value.code
