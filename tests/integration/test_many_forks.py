"""Forks of forks copy one flat list of commits, and forks of one position share one blob of them."""

import anyio
import pytest

from rebaser_client import Derive, RebaserClient, Remove, Set
from rebaser_client.blobs import open_blobs, open_collectable
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import BlobRef, Commit
from rebaser_core.messages import decode_tail
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import NEVER, Thresholds, forced
from tests.support.history import commits_of
from tests.support.owners import Engine, serving
from tests.support.workspace import edit, stands

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

DEEP = 20
WAYS = {
    "inline": Thresholds(inline_tail_max_bytes=NEVER),
    "blob": Thresholds(inline_tail_max_bytes=0),
    "checkpoint": Thresholds(inline_tail_max_bytes=0, tail_max_bytes=0),
}


async def created(client: RebaserClient, name: str) -> Commit:
    commit = (await commits_of(client, "ws", name))[0]
    assert commit.origin is not None
    return commit


@pytest.mark.parametrize("way", WAYS)
async def test_forks_of_forks_are_what_dictionaries_say(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, way: str
) -> None:
    """Each has the edits of all its ancestors as of their forks, and no list of copied commits is inside another."""
    blobs = open_blobs(None, js, subjects.blobs_bucket)
    books: dict[str, dict[str, object]] = {"b0": {"n": 0, "gone": 1, "sum": 0}}
    with forced(WAYS[way]):
        async with serving(js, subjects, engine):
            await edit(client, "b0", Set("n", 0), Set("gone", 1), Derive("sum", "sum", {"of": ["n"]}))
            for number in range(1, DEEP + 1):
                parent, name = f"b{number - 1}", f"b{number}"
                await client.create_branch("ws", name, parent, follow="manual")
                books[name] = dict(books[parent])
                await edit(client, name, Set("n", number), Set(f"own/{number}", number), Remove("gone"))
                books[name] = {**books[name], "n": number, "sum": number, f"own/{number}": number}
                books[name].pop("gone", None)
                await edit(client, parent, Set("later", number), wait="derived")
                books[parent]["later"] = number
            await edit(client, name, wait="derived")
        lengths = []
        for name, book in books.items():
            assert await stands(client, name) == book, name
            if name == "b0":
                continue
            origin = (await created(client, name)).origin
            assert origin is not None
            blob = origin.tail_blob
            assert isinstance(blob, BlobRef) == (way == "blob")
            rows = origin.tail if blob is None else decode_tail(await blobs.get(blob.address))
            sequences = [row.sequence for row in rows]
            assert sequences == sorted(set(sequences))
            copied = [row.body for row in rows if row.body is not None]
            assert not any("commits" in body.get("origin", {}) for body in copied)
            lengths.append(sum(body["kind"] == "create" for body in copied))
    assert lengths == ([0] * DEEP if way == "checkpoint" else list(range(DEEP)))


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
async def test_forks_of_one_position_share_one_blob(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, count: int
) -> None:
    """Whether one server creates them or two."""
    stored = open_collectable(None, js, subjects.blobs_bucket).stored
    with forced(WAYS["blob"]):
        async with serving(js, subjects, engine):
            for number in range(5):
                await edit(client, "main", Set("a", number))
            before = {blob.address async for blob in stored()}
            await fork_all(client, range(count // 2))
        async with serving(js, subjects, engine):
            await fork_all(client, range(count // 2, count))
    tails = {(await created(client, f"f{number}")).origin.tail_blob for number in range(count)}  # type: ignore[union-attr]
    (tail,) = tails
    assert tail is not None
    assert {blob.address async for blob in stored()} == before | {tail.address}
    assert await stands(client, f"f{count - 1}") == {"a": 4}


async def fork_all(client: RebaserClient, numbers: range) -> None:
    limiter = anyio.CapacityLimiter(32)

    async def fork(number: int) -> None:
        async with limiter:
            await client.create_branch("ws", f"f{number}", follow="manual")

    async with anyio.create_task_group() as group:
        for number in numbers:
            group.start_soon(fork, number)
