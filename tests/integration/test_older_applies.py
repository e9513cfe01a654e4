"""A branch of which an older position was applied keeps its later edits, including those that it had undone itself."""

import pytest

from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.branches.branch import Apply
from rebaser_core.commit import Kind
from rebaser_core.streams.subjects import Subjects
from tests.support.history import commit_of, replayed
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.mark.parametrize("checkpoint", [True, False])
async def test_what_was_edited_back_is_applied_after_an_older_position_was(
    js: JetStream, subjects: Subjects, client: RebaserClient, checkpoint: bool
) -> None:
    """A checkpoint does not list a value that equals its base again. Then the base moves to another definition."""
    async with serving(js, subjects, Engine(), checkpoint_bytes=4096 if checkpoint else 1 << 20):
        await edit(client, "main", Set("x", 1), Set("y", 2))
        await client.create_branch("ws", "fix", follow="manual")
        at = await edit(client, "fix", Set("y", 0))
        back = await edit(client, "fix", Set("y", 2), Set("text", "x" * 8_000))
        if checkpoint:
            async for commit in client.watch("ws", "fix", after=back):
                if commit.kind is Kind.CHECKPOINT:
                    break
        action = Apply("fix", at, allow_stale=True)
        applied = commit_of(await client.enqueue_updates_with_reply("ws", "main", (), action=action))
        assert (await stands(client, "main"))["y"] == 0
        await replayed(client, "ws", "fix", applied)
        found = {one.id: (one.base, one.ours) for one in (await client.changes("ws", "fix")).changes}
        assert found["y"] == (Set("y", 0), Set("y", 2))
        await client.apply("ws", "fix")
        assert await stands(client, "main") == await stands(client, "fix")
        assert (await stands(client, "main"))["y"] == 2
