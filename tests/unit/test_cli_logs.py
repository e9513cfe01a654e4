"""Log events go to stderr, and contain only the given fields."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from rebaser.cli import logs


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("format_", ["console", "json", "auto"])
def test_a_traceback_does_not_show_local_variables(format_: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", format_)
    secret = "open-sesame"
    try:
        {}[len(secret)]  # type: ignore[index]
    except KeyError:
        structlog.get_logger().exception("it_broke", count=3)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "it_broke" in shown.err
    assert "KeyError: 11" in shown.err
    assert secret not in shown.err


def test_events_below_the_level_are_silent_and_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "json")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud", count=3)
    [line] = capsys.readouterr().err.splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["count"]) == ("loud", "warning", 3)


@pytest.mark.parametrize("configured", [False, True])
def test_an_error_of_the_client_is_shown_and_nothing_below(configured: bool) -> None:
    """structlog is imported when the first error is shown. An application may have configured it before."""
    program = f"""
import sys
from rebaser.cli import logs
from rebaser_client.logs import get_logger

if {configured}:
    logs.configure("error", "console")
log = get_logger("rebaser_client.x").bind(key="a b")
logs.show_errors()
log.warning("quiet")
before = "structlog" in sys.modules
log.error("loud", count=3)
try:
    open("/nowhere")
except OSError:
    log.exception("raised")
print(before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{configured}\n"
    first, second, *traceback = done.stderr.splitlines()
    assert re.fullmatch(r"\S+Z \[error +\] loud +count=3 key='a b'", first)
    assert re.fullmatch(r"\S+Z \[error +\] raised +key='a b'", second)
    assert "FileNotFoundError" in traceback[-1]
