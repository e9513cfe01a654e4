"""`rebaser.testing`: the test suite of a user runs in a separate folder, and all parts work as documented."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from rebaser.dvu.functions import Function, registry
from rebaser.telemetry import tracing
from rebaser.testing import LocalRebaser, local_rebaser
from rebaser_client import (
    BlockingRebaserClient,
    ConfigError,
    Derive,
    Request,
    Set,
    Success,
    UnprocessableError,
    Update,
)
from tests.docs.pages import ROOT, split

PAGE = ROOT / "deploy/docs/testing.md"
MANY = """
import pytest


@pytest.mark.parametrize("number", range(50))
def test_each_has_a_workspace_of_its_own(rebaser_sync, number):
    client, workspace = rebaser_sync, rebaser_sync.workspace
    client.enqueue_updates(workspace, "main", [Set("a", number), Derive("b", "sum", {"x": ("a", "a")})])
    client.settle()
    values = {id_: value.value for id_, value in client.values(workspace, "main").items()}
    assert values == {"a": number, "b": 2 * number}
"""
ASYNCHRONOUS = """
import asyncio

import pytest
from rebaser.testing import local_rebaser
from rebaser_client import Derive, RebaserClient, Set


@pytest.fixture(scope="session")
def rebaser_spark_server():
    with local_rebaser() as other:  # instead of Spark, which takes seconds
        yield other


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def loaded(rebaser, anyio_backend):
    await use(rebaser, 7)
    return rebaser


async def use(client, number):
    edits = [Set("a", number), Derive("b", "sum", {"x": ("a", "a")})]
    await client.enqueue_updates(client.workspace, "main", edits)
    await client.settle()
    assert (await client.value(client.workspace, "main", "b")).value == 2 * number
    async for commit in client.watch(client.workspace, "main", after=0):
        break
    assert [letter async for letter in client.dead_letters.find()] == []
    async with client.fleet(client.workspace) as fleet:
        assert (await fleet.look()).total == 1


async def test_alone(rebaser):
    assert isinstance(rebaser, RebaserClient)
    await use(rebaser, 1)
    await rebaser.aclose()
    await use(rebaser, 2)


class TestAll:
    async def test_method(self, rebaser, rebaser_workspace, tmp_path):
        assert rebaser.workspace == rebaser_workspace
        await use(rebaser, 1)


def test_one_client_on_two_loops(rebaser):
    asyncio.run(use(rebaser, 1))
    asyncio.run(use(rebaser, 2))


@pytest.mark.anyio
async def test_with_another_plug_in(loaded):
    assert (await loaded.value(loaded.workspace, "main", "b")).value == 14
    await asyncio.gather(*(use(loaded, 3) for _ in range(5)))


@pytest.mark.rebaser(spark=True)
def test_a_marker_chooses_the_installation(rebaser_sync, rebaser_server, rebaser_spark_server):
    rebaser_sync.enqueue_updates_with_reply(rebaser_sync.workspace, "main", [Set("a", 1)])
    assert rebaser_spark_server.client.exists(rebaser_sync.workspace, "main")
    assert not rebaser_server.client.exists(rebaser_sync.workspace, "main")
"""
WRONG = """
import pytest


@pytest.mark.rebaser(sparc=True)
def test_a_wrong_marker(rebaser_sync):
    pass


async def test_a_failure_is_shown(rebaser):
    await rebaser.settle("none")
"""
# Prints the modules that a run of pytest has loaded because Rebaser is installed.
UNUSED = """
import sys
import pytest

class Loaded:
    def pytest_sessionfinish(self):
        print("LOADED", *sorted(sys.modules))

pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Loaded()])
"""


def run(folder: Path, *command: str) -> str:
    """Run Python in `folder` without Java, and return what it prints."""
    env = {"PATH": str(Path(sys.executable).parent), "HOME": str(folder), "JAVA_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=450, check=False
    )
    return done.stdout + done.stderr


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "--strict-markers", "--durations=3")


def test_a_suite_of_a_user_runs_without_java(tmp_path: Path) -> None:
    """It has 50 tests beside those of the page."""
    (tmp_path / "test_shop.py").write_text(split(PAGE)[1][0].text + split(PAGE)[1][1].text + MANY)
    printed = run(tmp_path, *PYTEST)
    assert "53 passed" in printed, printed


def test_asynchronous_tests_run_with_and_without_other_plug_ins(tmp_path: Path) -> None:
    (tmp_path / "test_async.py").write_text(ASYNCHRONOUS)
    printed = run(tmp_path, *PYTEST)
    assert "5 passed" in printed, printed


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG)
    printed = run(tmp_path, *PYTEST)
    assert "the marker is rebaser(spark=True) or rebaser(spark=False)" in printed
    assert re.search(r"UnprocessableError: there is no change set test-\w+/none", printed)
    assert "1 failed, 1 error" in printed


def test_the_plug_in_costs_nothing_if_no_test_uses_it(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    with_plugin, without = (
        set(re.search("LOADED (.*)", run(tmp_path, "-c", UNUSED, *options))[1].split())  # type: ignore[index]
        for options in ([], ["-p", "no:rebaser"])
    )
    assert with_plugin - without == {"rebaser", "rebaser.testing", "rebaser.testing.plugin"}


@pytest.fixture(scope="module")
def installation() -> Iterator[LocalRebaser]:
    with local_rebaser() as running:
        yield running


def test_settle_waits_for_what_was_sent_before(installation: LocalRebaser) -> None:
    client = installation.client
    client.enqueue_updates("ws", "cs", [Set("a", 0), Derive("b", "sum", {"x": ("a", "a")})])
    for number in range(1, 40):
        client.enqueue_updates("ws", "cs", [Set("a", number)])
    installation.settle("ws", "cs")
    assert client.values("ws", "cs")["b"].value == 78
    with pytest.raises(UnprocessableError, match="there is no change set ws/none"):
        installation.settle("ws", "none")


def twice(inputs: Any, params: Any) -> Any:
    """Twice x."""
    return inputs["x"] * 2


def test_a_test_registers_its_own_functions(installation: LocalRebaser) -> None:
    client = installation.client
    with installation.functions(twice, Function(name="my.next", vector=lambda inputs, _: inputs["x"] + 1)):
        edits: list[Update] = [Set("x", 2), Derive("y", "twice", {"x": "x"}), Derive("z", "my.next", {"x": "y"})]
        client.enqueue_updates_with_reply("ws", "own", edits, wait="derived")
        assert {id_: value.value for id_, value in client.values("ws", "own").items()} == {"x": 2, "y": 4, "z": 5}
        functions = {name for server in client.status().servers for name in server.functions}
        assert {"twice", "my.next"} <= functions
    client.enqueue_updates_with_reply("ws", "own", [Set("x", 3)], wait="derived")
    fault = client.values("ws", "own")["z"].error
    assert fault is not None
    assert fault.code == "unknown_function"
    for wrong, told in ((lambda _, __: 1, "has no name"), (3, "neither a Function nor callable"), (max, "'max'")):
        with pytest.raises((TypeError, ValueError), match=told):
            installation.functions(wrong)  # type: ignore[arg-type]


def test_functions_belong_to_an_installation_until_it_ends() -> None:
    with local_rebaser(functions=[twice]) as running:
        running.functions(Function(name="thrice", call=lambda inputs, _: inputs["x"] * 3))
        edits: list[Update] = [Set("x", 2), Derive("y", "twice", {"x": "x"}), Derive("z", "thrice", {"x": "x"})]
        running.client.enqueue_updates_with_reply("ws", "cs", edits, wait="derived")
        running.crash()
        running.client.enqueue_updates_with_reply("ws", "cs", [Set("x", 3)], wait="derived")
        assert {id_: value.value for id_, value in running.client.values("ws", "cs").items()} == {
            "x": 3,
            "y": 6,
            "z": 9,
        }
    assert not {"twice", "thrice"} & set(registry().functions)


def test_spark_cannot_run_the_functions_of_a_test() -> None:
    told = pytest.raises(ConfigError, match=r"\(twice\).*install these functions as a plug-in")
    with told, local_rebaser(spark=True, functions=[twice]):
        pass


def test_data_that_is_kept_is_found_again(tmp_path: Path) -> None:
    with local_rebaser(data=tmp_path) as first:
        first.client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
    with local_rebaser(data=tmp_path, quiescent_period=0.2) as second:
        assert second.client.values("ws", "cs")["a"].value == 1


def test_a_crash_hands_nothing_over_and_loses_nothing() -> None:
    with local_rebaser(quiescent_period=60.0) as running, capture_logs() as events:
        client = running.client
        client.enqueue_updates("ws", "cs", [Set("a", 0), Derive("b", "sum", {"x": ("a", "a")})])
        running.settle("ws", "cs")
        running.crash()
        told = [event["event"] for event in events]
        assert "task_nak_failed" in told, told  # the idle owner could not give its task back
        assert told.count("server_ready") == told.count("embedded_nats_ready") == 1
        for number in range(1, 40):
            client.enqueue_updates("ws", "cs", [Set("a", number)])
        running.crash()
        running.settle("ws", "cs")
        assert {id_: value.value for id_, value in client.values("ws", "cs").items()} == {"a": 39, "b": 78}


def test_the_environment_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment may have the settings of a production installation."""
    store = tmp_path / "blobs"
    for name, value in {"BLOBS": f"file://{store}", "PREFIX": "production", "CREATE_STREAMS": "false"}.items():
        monkeypatch.setenv(f"REBASER_{name}", value)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    provider = Mock(wraps=tracing._provider)
    monkeypatch.setattr(tracing, "_provider", provider)
    with local_rebaser(prefix="mine") as running:
        running.client.enqueue_updates_with_reply("ws", "cs", [Set("a", 1)])
        assert running.client.values("ws", "cs")["a"].value == 1
    assert not store.exists()
    provider.assert_not_called()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"quiesent_period": 5}, "no setting quiesent_period"),
        ({"quiescent_period": -1}, "invalid setting quiescent_period: "),
        ({"nats_url": "nats://x"}, "no setting nats_url"),
    ],
)
def test_a_wrong_setting_is_told(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told), local_rebaser(**settings):
        pass


def test_what_ends_the_program_in_a_callback_ends_no_other_client(installation: LocalRebaser) -> None:
    requests = [Request("ws", "many", [Set("a", 1)])]

    def leave(_: object) -> None:
        raise SystemExit(3)

    def given() -> Iterator[Request]:
        yield requests[0]
        raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        installation.client.enqueue_many(requests, on_outcome=leave)
    with pytest.raises(KeyboardInterrupt):
        installation.client.enqueue_many(given())
    assert [outcome.error for outcome in installation.client.enqueue_many(requests)] == [None]


def test_the_blocking_client_works_in_a_notebook(installation: LocalRebaser) -> None:
    """The cells of a notebook run on an event loop, which waits while a cell uses the client."""

    async def cell() -> None:
        with BlockingRebaserClient.connect(installation.url) as client:
            edits: list[Update] = [Set("a", 2), Derive("b", "sum", {"x": ("a", "a")})]
            response = client.enqueue_updates_with_reply("ws", "notebook", edits, wait="derived")
            assert isinstance(response.status, Success)
            assert client.values("ws", "notebook")["b"].value == 4
            with client.watch("ws", "notebook", after=0) as commits:
                assert next(commits).sequence == response.status.commit
            assert [entry.sequence for entry in client.log("ws", "notebook")][-1] == response.status.commit

    asyncio.run(cell())
