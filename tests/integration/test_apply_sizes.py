"""How many changes of a branch one apply may bring into its target, and what counts as a change."""

import pytest

from rebaser_client import RebaserClient, Set
from rebaser_client.jetstream import JetStream
from rebaser_client.log.branch_changes import Changes, UnknownEdit
from rebaser_core.limits import Limits
from rebaser_core.streams.subjects import Subjects
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, refusal, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

CHANGES_OF = "rebaser.change_set.readers.offer_reader.changes_of"


async def unknown(*_: object, **__: object) -> Changes:
    raise UnknownEdit


@pytest.mark.parametrize("way", ["log", "state"])
async def test_more_changes_than_a_request_may_have_are_refused(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "state":
        monkeypatch.setattr(CHANGES_OF, unknown)
    async with serving(js, subjects, engine, limits=Limits(max_updates=3)):
        await edit(client, "main", Set("a", 1))
        await client.create_branch("ws", "fix", follow="manual")
        await edit(client, "fix", Set("b", 1), Set("c", 1), Set("d", 1))
        await client.create_branch("ws", "huge", "fix", target="main", follow="manual")
        await edit(client, "huge", Set("e", 1))
        assert await refusal(client.apply("ws", "huge")) == "too_large"
        await client.apply("ws", "fix")


@pytest.mark.parametrize("way", ["log", "state"])
async def test_only_values_that_differ_from_the_base_count_as_changes(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A branch copies commits of the one from which it was created: here, those of `main`, and edits that were
    reverted."""
    if way == "state":
        monkeypatch.setattr(CHANGES_OF, unknown)
    async with serving(js, subjects, engine, limits=Limits(max_updates=3)):
        for number in range(5):
            await edit(client, "main", Set(f"a{number}", 1))
        await client.create_branch("ws", "parent", follow="manual")
        for number in range(5):
            await client.revert("ws", "parent", await edit(client, "parent", Set(f"a{number}", 2)))
        await client.create_branch("ws", "fix", "parent", target="main", follow="manual")
        await edit(client, "fix", Set("a0", 3))
        await client.apply("ws", "fix")
    assert await stands(client, "main") == {"a0": 3, "a1": 1, "a2": 1, "a3": 1, "a4": 1}
