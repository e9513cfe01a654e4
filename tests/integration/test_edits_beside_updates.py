"""Edits that are applied during a large update: the commit of the update is readable, and states what it covers."""

from collections.abc import Iterator

import anyio
import pytest

from rebaser.dvu.compiled import loader
from rebaser.dvu.planning.warm_up import warm
from rebaser_client import Derive, RebaserClient, Remove, Set, Unset
from rebaser_client.jetstream import JetStream
from rebaser_core.commit import Kind
from rebaser_core.messages import Success
from rebaser_core.streams.subjects import Subjects
from rebaser_core.thresholds import NEVER, Thresholds, forced
from rebaser_core.updates import Update
from rebaser_core.values import Json, State
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology", "limits")]

EDITS = {  # edits that remove rows, give them to other ids, or remove their definitions
    "removed": [Remove("d8"), Remove("d9")],
    "replaced": [Remove("d8"), Remove("d9"), Set("x", 8.0), Derive("y", "sum", {"of": ("a", "d7")})],
    "named": [Remove("d8"), Derive("y", "sum", {"of": ("nobody", "a")})],  # a missing id gets the row
    "derived anew": [Remove("d8"), Derive("d8", "sum", {"of": ("a", "a")}), Unset("d9"), Set("d10", -1.0)],
}


LIMITS = {
    "usual": Thresholds(),
    "lowest": Thresholds.lowest(),
    "highest": Thresholds.highest(),
    "whole": Thresholds(
        full_plan_min_values=0,
        full_plan_reach_divisor=NEVER,
        full_plan_max_python_share=1.0,
        ids_as_text_min_values=1,
        inline_table_max_rows=0,
    ),
    "cut": Thresholds(packet_bytes=2000, task_min_elements=1, result_bytes=100),
}
CASES = {f"{name}-inline": (limits, 300) for name, limits in LIMITS.items()} | {
    # Under the other limits, the results of few values are in a blob already.
    f"{name}-blob": (LIMITS[name], 1500)
    for name in ("usual", "highest", "cut")
}


@pytest.fixture(params=LIMITS.values(), ids=LIMITS)  # type: ignore[call-overload, untyped-decorator]
def limits(request: pytest.FixtureRequest) -> Iterator[Thresholds]:
    with forced(request.param) as those:
        yield those


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the code first: on a busy machine, compiling takes longer than a reply may."""
    loader.load()
    warm()


def fan_out(count: int) -> list[Update]:
    return [Set("a", 0.0), *(Derive(f"d{at}", "cel", {"a": "a"}, {"expr": f"a + {at}"}) for at in range(count))]


async def held_update(client: RebaserClient, engine: Engine) -> None:
    """Run an update of all values that waits for `engine.go`."""
    engine.go, engine.asked = anyio.Event(), anyio.Event()
    await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1.0)])
    with anyio.fail_after(60):
        await engine.asked.wait()


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize(("limits", "count"), CASES.values(), indirect=["limits"], ids=CASES)
async def test_what_is_edited_during_a_large_update_is_not_in_its_commit(
    js: JetStream, subjects: Subjects, client: RebaserClient, count: int, edits: list[Update]
) -> None:
    engine = Engine()
    async with serving(js, subjects, engine):
        engine.go.set()
        await client.enqueue_updates_with_reply("ws", "cs", fan_out(count), wait="derived")
        await held_update(client, engine)
        await client.enqueue_updates_with_reply("ws", "cs", edits)
        engine.go.set()
        await client.enqueue_updates_with_reply("ws", "cs", [Set("b", 0)], wait="derived")
        found = await client.values("ws", "cs")
    expected: dict[str, Json] = {"a": 1.0, "b": 0} | {f"d{at}": 1.0 + at for at in range(count)}  # type: ignore[assignment]
    for edit in edits:
        if isinstance(edit, Remove):
            del expected[edit.id]
        elif isinstance(edit, Derive):
            expected[edit.id] = {"y": 9.0, "d8": 2.0}[edit.id]
        else:
            expected[edit.id] = edit.value if isinstance(edit, Set) else None
    if "nobody" in str(edits):
        assert found.pop("y").state is State.ERROR
        del expected["y"]
    assert {id_: value.value for id_, value in found.items()} == expected


async def test_an_edit_that_touches_nothing_during_an_update_is_covered_with_it(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    engine = Engine()
    async with serving(js, subjects, engine):
        engine.go.set()
        await client.enqueue_updates_with_reply("ws", "cs", fan_out(3), wait="derived")
        await held_update(client, engine)
        reply = await client.enqueue_updates_with_reply("ws", "cs", [Remove("nosuch")])
        assert isinstance(reply.status, Success)
        engine.go.set()
        await client.wait_covered("ws", "cs", reply.status.commit, timeout=60)
    state = await client.state("ws", "cs")
    assert (state.covers, state.owes) == (state.last, False)


async def test_an_update_covers_no_edit_that_touched_something_meanwhile(
    js: JetStream, subjects: Subjects, client: RebaserClient
) -> None:
    engine = Engine()
    async with serving(js, subjects, engine):
        engine.go.set()
        await client.enqueue_updates_with_reply("ws", "cs", fan_out(3), wait="derived")
        await held_update(client, engine)
        reply = await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 2.0)])
        assert isinstance(reply.status, Success)
        engine.go.set()
        await client.wait_covered("ws", "cs", reply.status.commit, timeout=60)
    covers: list[int | None] = []
    async for commit in client.watch("ws", "cs", after=0):
        covers += [commit.covers] if commit.kind is Kind.DVU else []
        if len(covers) == 3:
            break
    assert covers[1:] == [reply.status.commit - 1, None]
    assert (await client.values("ws", "cs"))["d2"].value == 4.0
