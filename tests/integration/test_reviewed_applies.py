"""A branch is applied as it was reviewed: both positions that were seen are named, and anything newer is refused."""

import pytest

from rebaser_client import RebaserClient, RequestRejected, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.errors import UnprocessableError
from rebaser_core.streams.subjects import Subjects
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_a_branch_is_applied_only_to_the_target_that_was_seen(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    async with serving(js, subjects, Engine()):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        seen = await client.changes("ws", "fix")
        await edit(client, "main", Set("n", 1))  # another value, so that there is no conflict
        with pytest.raises(RequestRejected) as caught:
            await client.apply("ws", "fix", at=seen.info.sequence, expect_at=seen.target_sequence)
        assert caught.value.code == "moved"
        assert await stands(client, "main") == {"a": 1, "n": 1}
        again = await client.changes("ws", "fix")
        assert again.target_sequence > seen.target_sequence
        await edit(client, "fix", Set("b", 2))
        with pytest.raises(UnprocessableError, match="`expect_at` requires `at`"):
            await client.apply("ws", "fix", expect_at=again.target_sequence)
        await client.apply("ws", "fix", at=again.info.sequence, expect_at=again.target_sequence)
        assert await stands(client, "main") == {"a": 2, "n": 1}
