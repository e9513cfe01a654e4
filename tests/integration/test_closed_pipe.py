"""A command whose reader ends also ends, without an error message (`rebaser demo | head`)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRINTING = """
import anyio, sys
from rebaser.cli import app
from rebaser.cli.output import console

async def work():
    while True:
        {what}
        await anyio.sleep(0)

def command() -> int:
    from rebaser.cli.runner import run_async
    return run_async(work)

app.app.command("print")(command)
sys.exit(app.run(["print"]))
"""


def ends_quietly(*arguments: str, lines: int) -> None:
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(240)) == ("", 1)


@pytest.mark.parametrize(
    "what", ["console.out().print('x')", "console.write_line('x')", "console.write_json('x' * 9999)"]
)
def test_whichever_way_it_prints(what: str) -> None:
    ends_quietly("-c", PRINTING.format(what=what), lines=3)


def test_the_demo(tmp_path: Path) -> None:
    ends_quietly("-m", "rebaser", "demo", "--data", str(tmp_path), lines=3)
