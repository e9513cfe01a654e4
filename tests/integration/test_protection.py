"""Protected or closed change sets: which requests they refuse, until when, across checkpoints and reopenings."""

import pytest

from rebaser_client import RebaserClient, RequestRejected, Set
from rebaser_client.jetstream import JetStream
from rebaser_core.encoding.envelope import MESSAGE_VERSION
from rebaser_core.streams.subjects import Subjects
from tests.support.history import commit_of
from tests.support.owners import Engine, serving
from tests.support.rebases import info
from tests.support.workspace import edit, refusal, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


async def test_what_the_target_took_and_its_protection_survive_checkpoints(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine, checkpoint_bytes=1024, history_for=0.001):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        for number in range(20):
            await edit(client, "fix", Set("text", "x" * 100 + str(number)))
        taken = commit_of(await client.apply("ws", "fix"))
        for number in range(20):
            await edit(client, "main", Set("text", "x" * 100 + str(number)))
        await client.protect("ws", "main")
        for number in range(3):
            await client.create_branch("ws", f"more{number}", follow="manual")
            await edit(client, f"more{number}", *[Set(f"n{at}", at) for at in range(20 * number, 20 * number + 20)])
            await client.apply("ws", f"more{number}")
    async with serving(js, subjects, engine):
        with pytest.raises(RequestRejected, match="protected"):
            await edit(client, "main", Set("a", 3))
        with pytest.raises(RequestRejected, match="protected"):
            await client.revert("ws", "main", taken)
        assert await refusal(client.apply("ws", "fix")) == "closed"
        state = await client.state("ws", "main")
        assert state.checkpoint is not None
        assert state.checkpoint.sequence > taken
        assert state.taken["fix"] == taken
        child = await client.create_branch("ws", "child", follow="manual")
        assert not child.protected
        await client.unprotect("ws", "main")
        await edit(client, "main", Set("a", 3))


async def test_what_is_closed_stays_closed_until_it_is_reopened(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine, checkpoint_bytes=1024):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        before = commit_of(await client.close_change_set("ws", "fix", "applied")) - 1
        await client.close_change_set("ws", "main")
        assert await refusal(client.apply("ws", "fix")) == "closed"
        for _ in range(20):
            with pytest.raises(RequestRejected, match="unless it is reopened"):
                await edit(client, "main", Set("text", "x" * 100))
    async with serving(js, subjects, engine):
        assert [(one.change_set, one.status) for one in await client.branches("ws")] == [
            ("fix", "applied"),
            ("main", "abandoned"),
        ]
        then = await client.branch("ws", "fix", at=before)
        assert then is not None
        assert then.status == "open"
        tag = await client.create_branch("ws", "tag", closed=True)
        child = await client.create_branch("ws", "child", follow="manual")
        assert (tag.status, child.status) == ("kept", "open")
        await edit(client, "child", Set("a", 4))
        await client.reopen_change_set("ws", "main")
        await edit(client, "main", Set("b", 1))
        with pytest.raises(RequestRejected, match="it is reopened"):
            await client.apply("ws", "fix")
        await client.reopen_change_set("ws", "fix")
        await client.apply("ws", "fix")
    assert await stands(client, "main") == {"a": 2, "b": 1}


async def test_without_history_nothing_is_applied_or_protected(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
    async with serving(js, subjects, engine, history_for=0):
        assert await refusal(client.apply("ws", "fix")) == "unsupported"
        with pytest.raises(RequestRejected, match="this server keeps none"):
            await client.protect("ws", "main")


async def test_without_history_a_change_set_remains_protected_and_overviews_say_so(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.protect("ws", "main")
    async with serving(js, subjects, engine, history_for=0):
        assert await refusal(edit(client, "main", Set("a", 2))) == "protected"
        seen = await info(client, "main")
        assert seen.protected
    message = await js.get(subjects.commits_stream, seen.sequence)
    assert message is not None
    assert int(message.headers[MESSAGE_VERSION]) < 3, "servers of the previous release can read it"
