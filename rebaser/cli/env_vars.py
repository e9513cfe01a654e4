"""Finds environment variables that look like Rebaser settings but are not read by any part of Rebaser."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rebaser.client_settings import ClientSettings

PREFIX = "REBASER_"
_OURS = frozenset(
    {"REBASER_TEST_THRESHOLDS", "REBASER_STRUCTURES"}  # read by tests and by Spark's workers
    | {"REBASER_AUTHOR"}  # an option's variable; listed here so that recognizing it does not import any command
)
_KUBERNETES = re.compile(
    r"REBASER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\w+)?)"
)  # Kubernetes sets these variables for services whose name begins with `rebaser`


def unknown_variables(environment: Iterable[str], root: Any) -> list[str]:
    """Return a line for each variable that is neither a setting nor read by an option of `root` or its subcommands."""
    candidates = {name for name in environment if name.startswith(PREFIX)} - _OURS
    if not candidates:
        return []
    from rebaser.client_settings import ClientSettings

    # Usually, each candidate is a setting, so that the commands, which have the options, need not be imported. The
    # settings of a client come first, because importing all settings takes longer.
    if candidates <= _variables(ClientSettings):
        return []
    from rebaser.settings import Settings

    settings = _variables(Settings)
    if candidates <= settings:
        return []
    known = settings.union(_of_options(root, "REBASER"))
    lines = []
    for name in sorted(candidates - known):
        if name.startswith("REBASER_LIMITS__") or _KUBERNETES.fullmatch(name):
            continue  # loading the settings reports unknown limits
        close = get_close_matches(name, known, 1, cutoff=0.75)
        lines.append(f"{name} is not a setting and is ignored" + (f"; did you mean {close[0]}?" if close else ""))
    return lines


def _variables(settings: "type[ClientSettings]") -> frozenset[str]:
    return frozenset(f"{PREFIX}{name.upper()}" for name in settings.model_fields)


def _of_options(command: Any, prefix: str) -> Iterator[str]:
    """Yield the variables that options of `command` and its subcommands read."""
    for option in command.params:
        if isinstance(option.envvar, str):
            yield option.envvar
        elif getattr(option, "allow_from_autoenv", False):
            yield f"{prefix}_{option.name.upper()}"
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _of_options(subcommand, f"{prefix}_{name.upper().replace('-', '_')}")
