"""Values whose function was missing are computed once a server has it, even in change sets that nobody uses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rebaser.change_set.healing import heal
from rebaser.change_set.loading import open_log
from rebaser.dvu.functions.registry import ENTRY_POINT_GROUP, installed
from rebaser.settings import Settings
from rebaser.sweeper.debts import DebtTracker
from rebaser_client import Derive, RebaserClient, Set, State
from rebaser_client.jetstream import JetStream
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects
from rebaser_core.updates import Recompute
from tests.conftest import Events
from tests.support.contexts import context_of
from tests.support.history import commits_of
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

NAME = "twice, or so"


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process finds plug-ins after its functions are loaded again, as after a restart."""
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    yield tmp_path
    installed.cache_clear()


def install(folder: Path, module: str) -> None:
    (folder / f"{module}.py").write_text(
        "from rebaser.dvu.functions import Function\n"
        f"F = Function(name={NAME!r}, call=lambda values, _: 2 * values[0], takes='values')\n"
    )
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\ntwice = {module}:F\n")
    installed.cache_clear()


def engine() -> Engine:
    made = Engine()
    made.go.set()
    return made


async def test_a_change_set_that_sleeps_is_woken_and_heals_once(
    js: JetStream, subjects: Subjects, client: RebaserClient, plugins: Path, events: Events
) -> None:
    async with serving(js, subjects, engine()):
        edits = [Set("a", 21), Derive("b", NAME, {"x": "a"}), Derive("c", "sum", {"x": "b"})]
        await client.enqueue_updates_with_reply("ws", "cs", edits, wait="derived")  # type: ignore[arg-type]
    values = await client.values("ws", "cs")
    assert [fault.code for id_ in "bc" if (fault := values[id_].error)] == ["unknown_function", "failed_input"]
    assert await DebtTracker(js, subjects).read() == set()
    async with serving(js, subjects, engine()):  # an owner that does not have the function either
        await client.enqueue_updates_with_reply("ws", "cs", [Set("a", 21)], wait="derived")
    assert not events.named("functions_found")
    last = (await client.state("ws", "cs")).last

    install(plugins, "healing_plugin")
    assert await DebtTracker(js, subjects).read() == {"ws.cs"}
    async with serving(js, subjects, engine()):
        await client.wait_covered("ws", "cs", last + 1)
    values = await client.values("ws", "cs")
    assert {id_: (one.state, one.value) for id_, one in values.items()} == {
        "a": (State.OK, 21),
        "b": (State.OK, 42),
        "c": (State.OK, 42),
    }
    assert await DebtTracker(js, subjects).read() == set()

    async with serving(js, subjects, engine()):
        await client.enqueue_updates_with_reply("ws", "cs", [Set("other", 1)], wait="derived")
    [once] = events.named("functions_found")
    assert once["functions"] == [NAME]
    [asked] = [commit for commit in await commits_of(client, "ws", "cs") if commit.recompute]
    assert asked.debt == 1, "or nobody would see to it when its owner dies"


async def test_one_that_uses_it_no_more_is_left_alone_from_then_on(
    js: JetStream, subjects: Subjects, client: RebaserClient, plugins: Path
) -> None:
    async with serving(js, subjects, engine()):
        await client.enqueue_updates_with_reply("ws", "cs", [Derive("b", NAME, {})], wait="derived")
        await client.enqueue_updates_with_reply("ws", "cs", [Set("b", 1)], wait="derived")
    last = (await client.state("ws", "cs")).last
    install(plugins, "useless_plugin")
    async with serving(js, subjects, engine()):
        await client.wait_covered("ws", "cs", last + 1)
    assert await DebtTracker(js, subjects).read() == set()
    assert (await client.state("ws", "cs")).last == last + 1


async def test_what_is_asked_for_already_is_not_asked_for_again(
    js: JetStream, subjects: Subjects, client: RebaserClient, plugins: Path
) -> None:
    """Otherwise, each owner that cannot update for a while would append to the log."""
    async with serving(js, subjects, engine()):
        await client.enqueue_updates_with_reply(
            "ws", "cs", [Set("a", 1), Derive("b", NAME, {"x": "a"})], wait="derived"
        )
    install(plugins, "patient_plugin")
    commits = await open_log(context_of(js, subjects, Settings(server_id="test")), ChangeSetKey("ws", "cs"))
    last = commits.state.last
    for _ in range(3):
        await heal(commits)
        assert commits.state.last == last + 1
    [asked] = [commit for commit in await commits_of(client, "ws", "cs") if commit.recompute]
    assert asked.recompute == (Recompute(NAME),)
