"""The scene of the demo with a branch, on a real server with an engine in this process."""

import anyio
import pytest

from rebaser.cli.demo.branch_scene import IN_BRANCH, MEANWHILE
from rebaser.cli.demo.check import Facts
from rebaser.cli.demo.environment import Distribution
from rebaser.cli.demo.player import WORKSPACE, Player
from rebaser.cli.demo.screen import Screen
from rebaser.cli.output import console
from rebaser_client import RebaserClient, Set, Value
from rebaser_client.jetstream import JetStream
from rebaser_core.streams.subjects import Subjects
from rebaser_core.values import State
from tests.support.owners import Engine, serving

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("topology")]

REQUIRES = {"app": ("db", "web"), "web": ("core",), "db": ("core",), "core": ()}


@pytest.fixture(autouse=True)
def fresh_console() -> None:
    console.out.cache_clear()


def player(client: RebaserClient, requires: dict[str, tuple[str, ...]] = REQUIRES) -> Player:
    environment = {name: Distribution(name, 10**6, names) for name, names in requires.items()}
    facts = Facts(dict.fromkeys(environment, 10**6), {name: set(names) for name, names in requires.items()})
    return Player(client, Screen(), anyio.Event(), environment, facts)


async def test_a_branch_is_edited_settled_applied_and_undone(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(js, subjects, engine):
        playing = player(client)
        assert await playing.play()
        head, branch = playing.change_set, f"larger-{playing.change_set.removeprefix('run-')}"
        values = await client.values(WORKSPACE, head, "dist/core/size")
        edited = [entry.sequence async for entry in client.log(WORKSPACE, head, "dist/core/size")]
        info = await client.branch(WORKSPACE, branch)
    told = capsys.readouterr().out
    assert "values equal those computed directly from importlib.metadata" in told
    assert f"     rebaser branch                         {branch} begins with all values of {head}\n" in told
    # The values of core itself, its closure and its total, the closure and total of its three users, and two totals of
    # all.
    assert "11 derived values follow: env/size 29.0 MB -> 129.0 MB\n" in told
    assert f"dist/core/size: base 26.0 MB, {head} 76.0 MB, {branch} 126.0 MB\n" in told
    assert f"all of the branch in one commit of {head}: env/size 129.0 MB\n" in told
    assert "the apply is reverted: env/size 79.0 MB\n" in told
    grown = 26 * 10**6
    assert values["dist/core/size"].value == grown + MEANWHILE
    sizes = []
    for sequence in edited[:3]:
        (request,) = (await client.show(WORKSPACE, head, sequence)).requests
        sizes += [change.after.value for change in request.changes if isinstance(change.after, Set)]
    assert sizes == [grown + MEANWHILE, grown + IN_BRANCH, grown + MEANWHILE]
    assert info is not None
    assert info.target == head


async def test_a_wrong_figure_in_the_branch_fails_the_demo(
    js: JetStream,
    subjects: Subjects,
    client: RebaserClient,
    engine: Engine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truth = client.values

    async def lie(workspace: str, change_set: str) -> dict[str, Value]:
        values = await truth(workspace, change_set)
        return {**values, "env/count": Value(5, State.OK)} if change_set.startswith("larger-") else values

    monkeypatch.setattr(client, "values", lie)
    async with serving(js, subjects, engine):
        assert not await player(client).play()
    assert "the branch: env/count: ok 5, should be 4" in capsys.readouterr().out


async def test_without_a_distribution_to_grow_there_is_no_branch(
    js: JetStream, subjects: Subjects, client: RebaserClient, engine: Engine
) -> None:
    async with serving(js, subjects, engine):
        assert await player(client, {"a": ("b",), "b": ("a",)}).play()
    assert len(await client.branches(WORKSPACE)) == 1
