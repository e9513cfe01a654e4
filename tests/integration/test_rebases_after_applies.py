"""Branches go on after their targets applied them."""

from typing import Any

import pytest

from rebaser.change_set.settling import request_settling
from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import ApiError, JetStream
from rebaser_client.jetstream.infos import PubAck
from rebaser_client.nats.errors import NotAllowed
from rebaser_core.branches.branch import Apply
from rebaser_core.errors import RebaserError, TransientError
from rebaser_core.streams.subjects import Subjects
from tests.support.history import commit_of, commits_of
from tests.support.owners import Engine, serving
from tests.support.rebases import code_of, conflicts, info, rebase, settled
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.mark.parametrize("keep", [False, True])
async def test_a_branch_goes_on_after_an_apply_and_is_applied_again(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, keep: bool
) -> None:
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        at = await edit(client, "fix", Set("a", 2), Set("b", 1))
        if not keep:
            await edit(client, "fix", Set("c", 1))
        applied = commit_of(await client.apply("ws", "fix", at=at, keep=keep))
        assert (await settled(client, "fix", applied)).status == "open"
        for number in range(3, 6):
            await edit(client, "fix", Set("a", number))
            first = commit_of(await client.apply("ws", "fix", keep=True))
            assert (await settled(client, "fix", first)).status == "open"
            assert (await stands(client, "main"))["a"] == number
        assert await conflicts(client, "fix") == []
        assert (await client.changes("ws", "fix")).changes == ()


async def test_an_apply_is_answered_only_once_its_branch_was_asked_to_go_on(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, failures = request_settling, [1, 2]

    async def failing(*given: object) -> None:
        if failures:
            failures.pop()
            raise TransientError("NATS does not answer")
        await ask(*given)  # type: ignore[arg-type] # the same arguments

    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        monkeypatch.setattr("rebaser.change_set.processor.request_settling", failing)
        applied = commit_of(await client.apply("ws", "fix"))
        assert not failures
        assert (await settled(client, "fix", applied)).status == "applied"
        decided = [one for commit in await commits_of(client, "ws", "fix") for one in commit.requests]
        assert [one.request_id for one in decided if one.request_id.startswith("settle")] == [f"settle-{applied}"]


@pytest.mark.parametrize(
    "error", [ApiError(503, 10077, "maximum bytes exceeded"), NotAllowed("publish", "requests")], ids=type
)
async def test_an_apply_is_answered_though_its_branch_cannot_be_asked_to_go_on(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    error: RebaserError,
) -> None:
    publish = JetStream.publish

    async def refusing(self: JetStream, subject: str, payload: bytes, headers: Any = None, **more: Any) -> PubAck:
        if "settle-" in (headers or {}).get("Nats-Msg-Id", ""):
            raise error
        return await publish(self, subject, payload, headers, **more)

    monkeypatch.setattr(JetStream, "publish", refusing)
    async with serving(js, subjects, engine):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("a", 2))
        applied = commit_of(await client.apply("ws", "fix"))
        assert await code_of(client, "main", Apply("fix", allow_stale=True)) == "behind"
        assert (await rebase(client, "fix")).position >= applied  # has the same effect
        assert (await info(client, "fix")).status == "applied"
