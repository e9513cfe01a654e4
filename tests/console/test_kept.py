"""What several viewers ask for is computed once, and kept within bounds."""

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from rebaser.console.access.options import ConsoleOptions
from rebaser.console.app import RESOURCES
from rebaser.console.live.hub import Seen
from rebaser.console.live.samples import Samples
from rebaser.console.reading import kept
from rebaser.console.reading.kept import Kept
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser_client import RebaserClient, Set, UnprocessableError
from rebaser_client.admin.fleet import FleetView
from rebaser_client.log.branches import BranchDiff
from tests.support.web_console import WebConsole

pytestmark = pytest.mark.anyio


class Counted:
    """Something to compute, and how often it was."""

    def __init__(self, answer: str = "x") -> None:
        self.answer = answer
        self.times = 0
        self.go = anyio.Event()

    async def __call__(self) -> str:
        self.times += 1
        await self.go.wait()
        return self.answer


def clock_of(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(kept, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


async def test_those_who_ask_for_the_same_share_one_computation() -> None:
    some, compute, found = Kept(), Counted(), list[str]()

    async def ask() -> None:
        found.append(await some.get("key", compute, len))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        compute.go.set()
    assert (found, compute.times) == (["x"] * 5, 1)


async def test_a_viewer_who_goes_away_takes_nobody_along() -> None:
    some, compute, found = Kept(), Counted(), list[str]()

    async def ask(scope: anyio.CancelScope) -> None:
        with scope:
            found.append(await some.get("key", compute, len))

    async with anyio.create_task_group() as group:
        first = anyio.CancelScope()
        group.start_soon(ask, first)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(ask, anyio.CancelScope())
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        compute.go.set()
    assert (found, compute.times) == (["x"], 2)


async def test_a_failure_is_not_kept() -> None:
    some, tries = Kept(), 0

    async def compute() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("once")
        return "x"

    with pytest.raises(ValueError, match="once"):
        await some.get("key", compute, len)
    assert await some.get("key", compute, len) == "x"


async def test_what_is_kept_is_bounded_in_bytes_and_age(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, some = clock_of(monkeypatch), Kept(10)
    computed: list[str] = []

    def computing(key: str, size: int) -> Callable[[], Any]:
        async def compute() -> str:
            computed.append(key)
            return "x" * size

        return compute

    for key, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4), ("huge", 11), ("huge", 11)):
        await some.get(key, computing(key, size), len, seconds=60)
        assert some.bytes <= 10
    assert computed == ["a", "b", "c", "b", "huge", "huge"], "what was asked for last stays"
    clock.now = 59.9
    await some.get("b", computing("b", 4), len)
    clock.now = 60.0
    await some.get("b", computing("b", 4), len)
    assert computed[6:] == ["b"]
    assert some.bytes == 4, "what is old makes room even if nobody asks for it"


async def test_all_who_look_at_the_same_share_an_answer_for_each_look() -> None:
    times = 0

    async def read(_: Console, given: Given) -> Answer:
        nonlocal times
        times += 1
        return {"q": given.text("q"), "times": times}

    hub = SimpleNamespace(version=1)
    console = Console(cast("Any", hub), cast("Any", None), "0")
    live, still = Resource("/x", read, live=True, query=("q",)), Resource("/y", read)
    bodies = [await live.body(console, Given(query={"q": "a"})) for _ in range(3)]
    assert bodies == [b'{"q":"a","times":1}'] * 3
    assert await live.body(console, Given(query={"q": "b"})) == b'{"q":"b","times":2}'
    hub.version = 2
    assert await live.body(console, Given(query={"q": "a"})) == b'{"q":"a","times":3}'
    assert [await still.body(console, Given(query={"q": "a"})) for _ in range(2)] == [
        b'{"q":"a","times":4}',
        b'{"q":"a","times":5}',
    ]


@pytest.mark.parametrize("resource", [one for one in RESOURCES if one.live], ids=lambda one: one.path)
async def test_a_live_resource_names_the_parameters_that_it_reads(resource: Resource) -> None:
    asked = set[str]()

    class Recorded(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return default

    class Hub:
        async def seen(self) -> Any:
            return Seen(FleetView(1.0, 0.0, [], [], 0), (), ())

        samples = Samples()

    console = Console(cast("Any", Hub()), ConsoleOptions(frozenset()), "0")
    with suppress(UnprocessableError):  # the change set does not exist
        await resource.read(console, Given({"workspace": "ws", "changeSet": "main"}, Recorded()))
    assert asked == set(resource.query)


async def test_parameters_that_nothing_reads_make_no_other_answer() -> None:
    times = 0

    async def read(_: Console, given: Given) -> Answer:
        nonlocal times
        times += 1
        return dict(given.query)

    console = Console(cast("Any", SimpleNamespace(version=1)), cast("Any", None), "0")
    resource = Resource("/x", read, live=True, query=("q",))
    for number in range(5):
        junk = {f"{number}-{place}": "x" * 100 for place in range(100)}
        assert await resource.body(console, Given(query={"q": "a", **junk})) == b'{"q":"a"}'
    assert times == 1


async def test_changes_of_a_branch_are_computed_once_for_each_position(
    console: WebConsole, client: RebaserClient, ws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[bool] = []
    changes = RebaserClient.changes

    async def counted(self: RebaserClient, *names: str, derived: bool = False) -> BranchDiff:
        computed.append(derived)
        return await changes(self, *names, derived=derived)

    monkeypatch.setattr(RebaserClient, "changes", counted)
    await client.enqueue_updates_with_reply(ws, "main", [Set("a", 1), Set("b", 1)])
    await client.create_branch(ws, "draft")
    await client.enqueue_updates_with_reply(ws, "draft", [Set("a", 2), Set("b", 2)])
    path = f"/change-sets/{ws}/draft/changes?limit=1"
    pages = [await console.get(f"{path}&offset={offset}&derived=yes") for offset in (0, 1, 0)]
    assert [page["rows"][0]["id"] for page in pages] == ["a", "b", "a"]
    assert computed == [True]
    assert (await console.get(path))["rows"][0]["ours"] == "2"
    await client.enqueue_updates_with_reply(ws, "draft", [Set("a", 3)])
    newer = await console.get(f"{path}&derived=yes")
    assert newer["rows"][0]["ours"] == "3"
    await client.enqueue_updates_with_reply(ws, "main", [Set("b", 5)])
    assert (await console.get(f"{path}&derived=yes&offset=1"))["rows"][0]["theirs"] == "5"
    assert computed == [True, False, True, True]
