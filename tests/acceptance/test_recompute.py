"""After the code of a function has changed, stored values stay as they are until a recompute is requested."""

import os
from pathlib import Path

import pytest

from rebaser.embedded.nats import EmbeddedNats
from rebaser_client import Derive, RebaserClient, RequestRejected, Set, State
from rebaser_core.commit import Kind
from tests.support.commands import rebaser, rebaser_json
from tests.support.fleet import servers
from tests.support.history import check_history, commits_of

pytestmark = pytest.mark.anyio

WS, CS = "shop", "main"
GRAPH = [
    *(Set(f"price/{at}", at) for at in range(5)),
    *(Derive(f"gross/{at}", "gross", {"net": f"price/{at}"}) for at in range(5)),
    Derive("total", "sum", {"values": [f"gross/{at}" for at in range(5)]}),
    Derive("double", "cel", {"x": "price/3"}, {"expr": "x * 2"}),
]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module of a plug-in for processes started from now on: `gross`, a multiple of its input."""
    folder = tmp_path / "plugin"
    info = folder / "rates-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rates\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rebaser.functions]\ngross = rates:gross\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder / "rates.py"


def write(plugin: Path, result: str, second: int) -> None:
    """Each version needs another `second`: Python takes bytecode for current if the file has the same size, and was
    written in the same second."""
    plugin.write_text(f"def gross(inputs, params):\n    return {result}\n")
    os.utime(plugin, (second, second))


async def shown(client: RebaserClient) -> tuple[list[object], set[State]]:
    """Return the derived values, and the set of their states."""
    values = await client.values(WS, CS)
    ids = [*(f"gross/{at}" for at in range(5)), "total", "double"]
    return [values[id_].value for id_ in ids], {values[id_].state for id_ in ids}


@pytest.mark.parametrize(
    "module",
    [
        "tests.support.sparkless_server",
        pytest.param("rebaser", marks=[pytest.mark.spark, pytest.mark.long]),  # starts Spark twice
    ],
)
async def test_values_follow_the_code_of_their_function_when_they_are_recomputed(
    own_nats: EmbeddedNats, plugin: Path, module: str
) -> None:
    old = [0, 2, 4, 6, 8, 20, 6]
    new = [0, 3, 6, 9, 12, 30, 6]
    async with RebaserClient.connect(own_nats.url) as client:
        write(plugin, "inputs['net'] * 2", 1)
        async with servers(own_nats.url, "before", module=module):
            await client.enqueue_updates_with_reply(WS, CS, GRAPH, wait="derived", timeout=150)  # type: ignore[arg-type]
            assert await shown(client) == (old, {State.OK})

        write(plugin, "inputs['net'] * 3", 2)
        async with servers(own_nats.url, "after", module=module):
            await client.enqueue_updates_with_reply(WS, CS, [Set("note", "x")], wait="derived", timeout=150)
            assert await shown(client) == (old, {State.OK})

            with pytest.raises(RequestRejected) as caught:
                await client.recompute(WS, CS, "grass")
            assert caught.value.code == "nothing_to_recompute"
            unknown = await rebaser("recompute", WS, "mian", nats_url=own_nats.url)
            assert (unknown.returncode, unknown.stdout) == (1, "")
            assert unknown.stderr == (
                "rebaser: there is no change set mian in workspace shop; `rebaser list shop` shows all change sets\n"
            )

            asked = ("recompute", WS, CS, "--wait", "derived", "--timeout", "150")
            done = await rebaser(*asked, "--function", "gross", nats_url=own_nats.url)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("applied the request to recompute values of gross, commit ")
            assert await shown(client) == (new, {State.OK})

            [report] = await rebaser_json(*asked, nats_url=own_nats.url)
            assert (report["status"], report["recompute"], report["derived"]) == ("success", {}, True)
            assert await shown(client) == (new, {State.OK})
        commits = await commits_of(client, WS, CS)
        check_history(commits)
        assert [len(commit.delta) for commit in commits if commit.kind is Kind.DVU] == [7, 5, 0]
        assert not await client.exists(WS, "mian")
