"""Rebases branches of the workspace `ws`, and reads their conflicts."""

import pytest

from rebaser_client import RebaserClient, RequestRejected
from rebaser_client.log.branches import BranchConflict, BranchInfo
from rebaser_core.branches.branch import Apply, Rebase
from rebaser_core.commit import Strategy
from rebaser_core.ids import ChangeSetKey
from rebaser_core.messages import Success
from rebaser_core.thresholds import Thresholds
from tests.support.history import replayed

BLOBS = {"inline_max_updates": 0, "inline_max_bytes": 0, "on_loop_max_bytes": 0}
WAYS = {
    "log": Thresholds(),
    "log in blobs": Thresholds(**BLOBS),
    "state": Thresholds(replay_max_bytes=0),
    "state in blobs": Thresholds(replay_max_bytes=0, fold_step=1, **BLOBS),
}


async def rebase(client: RebaserClient, name: str, *, strategy: str = "record", onto: str | None = None) -> Success:
    """Rebase the branch, wait until it is derived, and return the answer."""
    action = Rebase(onto=onto, strategy=Strategy(strategy))
    response = await client.enqueue_updates_with_reply("ws", name, (), action=action, wait="derived")
    assert isinstance(response.status, Success)
    return response.status


async def code_of(client: RebaserClient, name: str, action: Rebase | Apply) -> str:
    """Send a request with `action`, which must be rejected, and return the error code."""
    with pytest.raises(RequestRejected) as caught:
        await client.enqueue_updates_with_reply("ws", name, (), action=action)
    return caught.value.code


async def conflicts(client: RebaserClient, name: str) -> list[BranchConflict]:
    """Return the conflicts that are read from commits, and check that they equal those in the state."""
    info, found = await client._branches.conflicts(ChangeSetKey("ws", name))
    state = await client.state("ws", name)
    assert state.branch is not None
    assert [one.id for one in found] == sorted(state.branch.conflicts)
    assert info.conflicts == len(found)
    return list(found)


async def info(client: RebaserClient, name: str) -> BranchInfo:
    """Return what the newest commit tells of the branch, which has to exist."""
    found = await client.branch("ws", name)
    assert found is not None
    return found


async def settled(client: RebaserClient, name: str, commit: int) -> BranchInfo:
    """Wait until the branch has replayed its target up to `commit`, and return `info` of it."""
    await replayed(client, "ws", name, commit)
    return await info(client, name)
