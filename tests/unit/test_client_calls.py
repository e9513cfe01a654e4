"""Tests what a client puts into its requests: an id for each, and the arguments of the caller."""

from typing import Any

import pytest

from rebaser_client import RebaserClient
from rebaser_core.commit import Reverts
from rebaser_core.ids import RequestId
from rebaser_core.updates import Recompute


class Noting(RebaserClient):
    """Records requests, and sends nothing."""

    def __init__(self) -> None:
        self._id_time = self._id_number = 0

    async def enqueue_updates_with_reply(self, *_: object, **options: Any) -> Any:
        return options


def test_ids_made_within_one_millisecond_differ_and_ascend() -> None:
    client = Noting()
    ids = [client._request_id(None) for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert ids == sorted(ids)
    assert client._request_id("mine") == "mine"


@pytest.mark.anyio
async def test_what_the_caller_said_is_sent() -> None:
    client = Noting()
    sent: Any = await client.recompute("ws", "cs", "sum")
    assert (sent["recompute"], sent["wait"]) == (Recompute("sum"), "derived")
    sent = await client.revert("ws", "cs", 3, author="ann", message="why", wait="derived", request_id="id")
    assert sent["action"] == Reverts(3, 3)
    assert [sent[name] for name in ("author", "message", "wait", "request_id")] == ["ann", "why", "derived", "id"]
    sent = await client.revert("ws", "cs", 3, 5)
    assert sent["action"] == Reverts(3, 5)
    sent = await client.revert("ws", "cs", 3, request="r")
    assert sent["action"] == Reverts(3, 3, RequestId("r"))
