"""A test that waits for an event that never comes fails in time, and does not delay later tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import anyio
import pytest
import tests.conftest

pytestmark = pytest.mark.anyio
tests.conftest.IN_TIME = 0.01  # so that a busy machine does not reach the longer limit


@pytest.fixture
async def opened(anyio_backend):
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        yield
        group.cancel_scope.cancel()


@pytest.mark.timeout(100)
async def test_that_waits(opened):
    await anyio.sleep_forever()


async def test_behind_it(opened):
    pass
"""


def test_a_test_that_waits_for_ever_fails_and_those_behind_it_run(tmp_path: Path) -> None:
    file = tmp_path / "test_waits.py"
    file.write_text(TESTS)
    options = (
        "-c",
        "/dev/null",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-n0",
        "--timeout",
        "3000",
        "--tb=line",
    )
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "TimeoutError" in done.stdout
