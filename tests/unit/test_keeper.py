"""When compiled code is made beside a server."""

import subprocess
import sys
from typing import Any

import anyio
import pytest

from rebaser.dvu import compiled
from rebaser.dvu.keeper import EngineSettings, Keeper

pytestmark = pytest.mark.anyio


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    started: list[list[str]] = []

    async def run_process(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        started.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(anyio, "run_process", run_process)
    return started


async def test_it_is_compiled_once_spark_is_up_and_only_if_nobody_has(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper("local[*]", EngineSettings(), lambda _: None)
    monkeypatch.setattr(compiled, "kept", lambda: True)
    await keeper.compile()
    monkeypatch.setattr(compiled, "kept", lambda: False)
    await Keeper("sc://elsewhere:1", EngineSettings(), lambda _: None).compile()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.compile)
        await anyio.sleep(0.01)
        assert commands == []
        keeper.ready.set()
    assert commands == [[sys.executable, "-m", "rebaser.dvu.compiled"]]
