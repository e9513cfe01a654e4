"""Branches are applied to their targets: through real servers, with checkpoints, blobs and purges in between."""

from collections.abc import AsyncIterator

import pytest

from rebaser_client import Derive, RebaserClient, Remove, RequestRejected, Set, Update
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Kind
from rebaser_core.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from tests.support.history import check_history, commit_of, commits_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]


@pytest.fixture
async def client(nats_url: str, subjects: Subjects) -> AsyncIterator[RebaserClient]:
    async with RebaserClient.connect(nats_url, prefix=subjects.prefix) as connected:
        yield connected


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.go.set()
    return engine


async def edit(client: RebaserClient, name: str, *updates: Update, expect_at: int | None = None) -> int:
    return commit_of(await client.enqueue_updates_with_reply("ws", name, updates, expect_at=expect_at))


async def stands(client: RebaserClient, name: str, at: int | None = None) -> dict[str, object]:
    return {id_: value.value for id_, value in (await client.values("ws", name, at=at)).items()}


async def refused(client: RebaserClient, branch: str, **options: object) -> str:
    with pytest.raises(RequestRejected) as caught:
        await client.apply("ws", branch, **options)  # type: ignore[arg-type] # each has its own type
    return caught.value.code


WAYS = {
    "usual": Thresholds(),
    "blobs": Thresholds(inline_max_updates=0, inline_max_bytes=0, on_loop_max_bytes=0),
    "few deltas": Thresholds(max_deltas=1, delta_changes_divisor=1),
}


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_a_target_takes_the_changes_of_a_branch_beside_its_own(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    with forced(limits):
        async with serving(js, subjects, engine, checkpoint_bytes=1024):
            await edit(
                client, "main", Set("a", 1), Set("b", 2), Set("c", 3), Derive("sum", "sum", {"values": ("a", "b")})
            )
            await client.create_branch("ws", "fix")
            await edit(client, "fix", Set("a", 10), Remove("c"), Set("d", 4))
            await edit(client, "fix", Set("d", 5), Set("e", 6))
            last = await edit(client, "fix", Remove("e"))
            await edit(client, "main", Set("b", 20))
            response = await client.apply("ws", "fix", author="ann", message="reviewed", wait="derived")
            assert await stands(client, "main") == {"a": 10, "b": 20, "d": 5, "sum": 30}
            commit = (await commits_of(client, "ws", "main"))[-2]
            log = {one.sequence: one for one in await commits_of(client, "ws", "main")}
            commit = log[commit_of(response)]
            assert (commit.kind, commit.authors[0].author) == (Kind.REBASE, "ann")
            assert commit.source is not None
            assert commit.source.change_set == "fix"
            assert commit.source.sequence >= last
            state = await client.state("ws", "main")
            assert state.taken == {"fix": commit.sequence}
            check_history(list(log.values()))
            await client.undo("ws", "main", author="ann", wait="derived")
            assert await stands(client, "main") == {"a": 1, "b": 20, "c": 3, "sum": 21}
