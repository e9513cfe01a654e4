"""The commands are listed without being imported, and the list agrees with their modules, each of which can be
imported alone."""

import os
import subprocess
import sys

import pytest
from typer.main import get_group

from rebaser.cli.app import app
from rebaser.cli.lazy_group import LazyGroup
from tests.support.import_alone import ROOT, modules


@pytest.mark.parametrize("name", LazyGroup.makers)
def test_the_summary_in_the_list_is_the_first_sentence_of_the_help(name: str) -> None:
    assert LazyGroup.summaries[name] == get_group(app).commands[name].get_short_help_str(200)


def test_a_command_of_the_application_itself_is_listed_too() -> None:
    group = LazyGroup(name="x", commands={"own": get_group(app).commands["ping"]})
    assert list(group.commands) == [*LazyGroup.makers, "own"]


def test_the_module_of_each_command_can_be_imported_without_those_of_others() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.import_alone"],
        cwd=ROOT,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # a process with threads should not fork
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == modules(), done.stderr
