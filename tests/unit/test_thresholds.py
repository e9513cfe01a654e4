"""One object has every threshold. Tests force thresholds in their own process, or in processes that they start."""

import os
import random
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from rebaser.runtime.forced_thresholds import VARIABLE, parse
from rebaser_core import thresholds
from rebaser_core.errors import ConfigError
from rebaser_core.thresholds import Thresholds, forced


def test_each_has_room_on_both_sides_of_its_default_and_says_what_it_is_for() -> None:
    source = Path(thresholds.__file__).read_text()
    for one in fields(Thresholds):
        low, high = one.metadata["lowest"], one.metadata["highest"]
        assert low <= one.default <= high
        assert low < high
        assert f"    {one.name}: " in source
        assert source.split(f"    {one.name}: ")[1].splitlines()[1].lstrip().startswith('"""'), one.name


def test_what_is_drawn_is_within_bounds_and_each_comes_at_either_end() -> None:
    drawn = [asdict(Thresholds.drawn(random.Random(seed))) for seed in range(60)]
    lowest, highest = asdict(Thresholds.lowest()), asdict(Thresholds.highest())
    for name, low in lowest.items():
        found = {one[name] for one in drawn}
        assert {low, highest[name]} <= found
        assert low <= min(found)
        assert max(found) <= highest[name]
    assert Thresholds.drawn(random.Random("7")) == Thresholds.drawn(random.Random("7"))


def test_they_are_as_before_once_nobody_forces_them() -> None:
    def fail() -> None:
        with forced(Thresholds.lowest()):
            assert thresholds.now == Thresholds.lowest()
            raise ZeroDivisionError

    before = thresholds.now
    with pytest.raises(ZeroDivisionError):
        fail()
    assert thresholds.now is before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lowest", Thresholds.lowest()),
        ("highest", Thresholds.highest()),
        ("drawn 17", Thresholds.drawn(random.Random("17"))),
        (
            '{"packet_bytes": 1, "full_plan_max_python_share": 1}',
            Thresholds(packet_bytes=1, full_plan_max_python_share=1),
        ),
    ],
)
def test_a_process_begins_with_what_the_environment_says(text: str, expected: Thresholds) -> None:
    assert parse(text) == expected
    found = subprocess.run(
        [sys.executable, "-c", "import rebaser; from rebaser_core import thresholds; print(thresholds.now)"],
        env=os.environ | {VARIABLE: text},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("low", "must be lowest"),
        ("drawn", "must be lowest"),
        ("[1]", "must be a JSON object"),
        ('{"packet_bites": 1}', "unknown threshold packet_bites"),
        ('{"packet_bytes": 0}', "packet_bytes must be a number from 1"),
        ('{"packet_bytes": 1.5}', "packet_bytes must be a number"),
        ('{"packet_bytes": true}', "packet_bytes must be a number"),
        ('{"full_plan_max_python_share": 2}', "full_plan_max_python_share must be a number from 0.0 to 1.0"),
    ],
)
def test_what_makes_no_sense_there_is_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)
