"""Finds out which functions this server has, and which of the functions that a change set uses are missing here."""

from anyio import to_thread

from rebaser.dvu.functions.registry import installed, registry
from rebaser_core.state.change_set import ChangeSetState

MAX_NAMED = 20  # maximum number of functions that one header lists
MAX_NAMED_CHARACTERS = 2000  # maximum total length, in characters, of the names in one header


async def load_functions() -> None:
    """Load the plug-ins, unless they are loaded already. This runs in a thread, because loading may take a long
    time."""
    if not installed.cache_info().currsize:
        await to_thread.run_sync(installed)


def missing_functions(state: ChangeSetState) -> tuple[str, ...]:
    """Return the names of functions that values in `state` use and that are missing on this server.

    Names that do not fit into one header are left out.
    """
    missing = state.cells.unknown_functions(registry().functions)
    if not missing:
        return ()
    room = MAX_NAMED_CHARACTERS
    names: list[str] = []
    for name in sorted(missing):
        room -= len(name)
        if room < 0 or len(names) == MAX_NAMED:
            break
        names.append(name)
    return tuple(names)


def any_available(names: tuple[str, ...]) -> bool:
    """Return whether this server has at least one of the functions `names`."""
    return any(name in registry().functions for name in names)
