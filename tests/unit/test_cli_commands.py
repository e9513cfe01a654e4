"""The commands are listed without being imported, and the list agrees with their modules, each of which can be
imported alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_group

from rebaser.cli.app import app
from rebaser.cli.lazy_group import LazyGroup
from rebaser.settings import Settings
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


def options(command: Any) -> Iterator[Any]:
    """Yield the options of `command` and of its subcommands."""
    yield from command.params
    for subcommand in getattr(command, "commands", {}).values():
        yield from options(subcommand)


def test_the_number_that_is_shown_as_a_default_is_that_of_the_setting() -> None:
    shown: dict[str, float] = {}
    for option in options(get_group(app)):
        name = str(option.envvar or "").removeprefix("REBASER_").lower()
        default = getattr(option, "show_default", None)
        if name in Settings.model_fields and isinstance(default, str) and default.replace(".", "").isdigit():
            shown[name] = float(default)
    assert {"quiescent_period", "sweep_interval", "ack_wait"} <= shown.keys()
    assert shown == {name: Settings.model_fields[name].default for name in shown}
