"""Variables of the environment that look like settings of Rebaser, and are none."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

PREFIX = "REBASER_"
_OURS = frozenset({"REBASER_TEST_THRESHOLDS", "REBASER_STRUCTURES", "REBASER_SEED"})  # of tests, and of Spark's workers
_KUBERNETES = re.compile(r"REBASER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\w+)?)")  # of services so named


def unknown_variables(environment: Iterable[str], root: Any) -> list[str]:
    """A line for each variable that nothing reads: no setting, and no option of the command `root` or of one below
    it."""
    given = [name for name in environment if name.startswith(PREFIX)]
    if not given:
        return []
    known = _known(root)
    lines = []
    for name in sorted(given):
        if name in known or name.startswith("REBASER_LIMITS__") or _KUBERNETES.fullmatch(name):
            continue  # a limit that is none is an error already
        close = get_close_matches(name, known, 1, cutoff=0.75)
        lines.append(f"{name} is no setting" + (f", did you mean {close[0]}?" if close else ""))
    return lines


def _known(root: Any) -> frozenset[str]:
    from rebaser.settings import Settings

    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    return frozenset({*settings, *_of_options(root, "REBASER"), *_OURS})


def _of_options(command: Any, prefix: str) -> Iterator[str]:
    """What the options of a command and of those below it read."""
    for option in command.params:
        if isinstance(option.envvar, str):
            yield option.envvar
        elif getattr(option, "allow_from_autoenv", False):
            yield f"{prefix}_{option.name.upper()}"
    for name, below in getattr(command, "commands", {}).items():
        yield from _of_options(below, f"{prefix}_{name.upper().replace('-', '_')}")
