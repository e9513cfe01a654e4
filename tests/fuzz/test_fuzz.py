"""Short forms of fuzzing, with a fixed seed, and the inputs that failed once. For longer runs: `python -m tests.fuzz
--help`."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.messages import fuzz_messages
from tests.fuzz.run import check, corpus, run
from tests.fuzz.targets import TARGETS

SEED = 4
INPUTS = 1000


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_gives_a_value_or_an_error_of_ours(name: str) -> None:
    assert run(name, SEED, count=INPUTS).executions == INPUTS


@pytest.mark.parametrize(("name", "path"), [pytest.param(*one, id=one[1].stem) for one in corpus()])
def test_what_once_failed_does_not(name: str, path: Path) -> None:
    check(name, bytes.fromhex(path.read_text()))


@pytest.mark.anyio
async def test_damaged_messages_block_no_change_set(capsys: pytest.CaptureFixture[str]) -> None:
    report = await fuzz_messages(2000, SEED)
    with capsys.disabled():
        print(f"\n  {report}", file=sys.stderr)
