"""`rebaser.testing`: the test suite of a user runs in a separate folder, and all parts work as documented."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from rebaser.telemetry import tracing
from rebaser.testing import LocalRebaser, local_rebaser
from rebaser_client import ConfigError, Derive, Request, Set, UnprocessableError
from tests.docs.pages import ROOT, split

PAGE = ROOT / "deploy/docs/testing.md"
MANY = """
import pytest


@pytest.mark.parametrize("number", range(50))
def test_each_has_a_workspace_of_its_own(rebaser_server, rebaser_workspace, number):
    client = rebaser_server.client
    client.enqueue_updates(rebaser_workspace, "main", [Set("a", number), Derive("b", "sum", {"x": ("a", "a")})])
    rebaser_server.settle(rebaser_workspace, "main")
    values = {id_: value.value for id_, value in client.values(rebaser_workspace, "main").items()}
    assert values == {"a": number, "b": 2 * number}
"""


def test_a_suite_of_a_user_runs_without_java(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(split(PAGE)[1][0].text + MANY)
    env = {"PATH": str(Path(sys.executable).parent), "HOME": str(tmp_path), "JAVA_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=3"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "52 passed" in done.stdout, done.stdout + done.stderr


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
