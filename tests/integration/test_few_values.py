"""Reading a few values gives the same as reading the whole state, at every position of every log."""

import random
import re
from contextlib import suppress

import anyio
import pytest

from rebaser_client import Derive, Match, RebaserClient, Remove, RequestRejected, Set, Unset, Update
from rebaser_client.blobs import open_blobs
from rebaser_client.jetstream import JetStream
from rebaser_client.log.reader import StateLoader
from rebaser_core.commit import BranchStatus, Marking
from rebaser_core.errors import RebaserError
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import Thresholds, forced
from rebaser_core.values import Json
from tests.support.draws import drawing
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

IDS = [f"v{number}" for number in range(6)]
NAMES = ["main", "b1", "b2"]
WAYS = {
    "usual": Thresholds(),
    "blobs": Thresholds(inline_max_bytes=200, inline_max_updates=1, inline_tail_max_bytes=0, inline_table_max_rows=1),
    "layers": Thresholds(
        inline_max_updates=2, part_rows=4, batch_rows=2, delta_changes_divisor=0, deltas_bytes_factor=0
    ),
}


def some_edits(rng: random.Random) -> list[Update]:
    made: list[Update] = []
    for id_ in rng.choices(IDS, k=rng.choice([1, 1, 2, 4])):
        others = tuple(rng.choices(IDS, k=rng.randint(0, 2)))
        inputs = {"values": Match("v*")} if rng.random() < 0.1 else {"values": others}
        derive = Derive(id_, "sum", inputs)
        values: list[Json] = [1, 2.5, "text", [1]]
        choices: list[Update] = [Set(id_, rng.choice(values)), Unset(id_), Remove(id_), derive, derive]
        made.append(rng.choice(choices))
    return made


async def act(client: RebaserClient, rng: random.Random) -> None:
    """Change a change set at random. The request may be refused."""
    name = rng.choice(NAMES)
    send = client.enqueue_updates_with_reply
    what = rng.choice(["edit"] * 12 + ["branch"] * 4 + ["rebase", "apply", "revert", "undo", "delete", "reopen"])
    if what == "edit":
        await send("ws", name, some_edits(rng), wait=rng.choice(["applied", "derived"]))
    elif what == "branch":
        parent = rng.choice(NAMES)
        at = rng.choice([None, (await client.state("ws", parent)).last or None])
        await client.create_branch("ws", name, parent, at=at, follow=rng.choice(["auto", "manual"]))
    elif what == "rebase":
        await client.rebase("ws", name, strategy=rng.choice(["record", "ours", "theirs"]))
    elif what == "apply":
        await client.apply("ws", name)
    elif what == "delete":
        await send("ws", name, (), action=Marking(status=BranchStatus.DELETED))
    elif what == "reopen":
        await send("ws", name, (), action=Marking(status=BranchStatus.OPEN))
    elif what == "undo":
        await client.undo("ws", name)


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
async def test_a_few_values_are_those_of_the_state_at_any_position(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, limits: Thresholds
) -> None:
    seed = drawing("few values").randrange(10**9)
    rng = random.Random(seed)
    with forced(limits):
        kept, size = rng.choice([0.001, 7 * 86_400]), rng.choice([1024, 4096, 10**6])
        async with serving(js, subjects, engine, checkpoint_bytes=size, history_for=kept):
            await client.enqueue_updates_with_reply("ws", "main", [Set(id_, 1) for id_ in IDS], wait="derived")
            await client.create_branch("ws", "b1")
            for _ in range(40):
                with suppress(RequestRejected, RebaserError):
                    await act(client, rng)
        loader = StateLoader(js, subjects, open_blobs(None, js, subjects.blobs_bucket))
        newest = (await js.stream_info(subjects.commits_stream)).last_sequence
        for name in NAMES:
            key = ChangeSetKey("ws", name)
            assert (await loader.load_head(key)).chain == (await loader.load(key)).chain
            for at in [None, *rng.sample(range(1, newest + 1), min(newest, 30))]:
                await compare(loader, key, rng.sample(IDS, rng.randint(0, 3)), at, seed)


async def test_a_value_whose_update_is_due_is_stale_also_when_it_is_read_alone(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        double = Derive("double", "sum", {"values": ("a", "a")})
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1), Set("b", 1), double], wait="derived")
        engine.go = anyio.Event()  # nothing is computed from now on
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2)])
        value = await client.value("ws", "cs", "double")
        assert value is not None
        assert value.state == "stale"
        engine.go.set()


async def compare(loader: StateLoader, key: ChangeSetKey, ids: list[str], at: int | None, seed: int) -> None:
    told = f"seed {seed}: {key}@{at} {ids}"
    try:
        whole = (await loader.load(key, at)).state
    except RebaserError as problem:
        with pytest.raises(type(problem), match=re.escape(problem.message)):
            await loader.load_values(key, ids, at)
        return
    found = await loader.load_values(key, ids, at)
    stale = found.stale(), whole.stale()
    for id_ in ids:
        assert repr(found.value(id_, stale[0])) == repr(whole.value(id_, stale[1])), f"{told}: {id_}"
        assert found.cells.edit_of(id_) == whole.cells.edit_of(id_), f"{told}: {id_}"
        assert found.cells.edited(id_) == whole.cells.edited(id_), f"{told}: {id_}"
    for one in ("last", "edited", "status", "marks", "weight", "taken", "protected", "born_ms"):
        assert getattr(found, one) == getattr(whole, one), f"{told}: {one}"
    for one in ("birth", "origin", "origin_sequence", "target", "base"):
        assert getattr(found.branch, one, None) == getattr(whole.branch, one, None), f"{told}: {one}"
