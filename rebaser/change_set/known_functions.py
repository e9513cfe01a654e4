"""Which functions this server has, and which ones the values of a change set lack."""

from anyio import to_thread

from rebaser.dvu.functions.registry import registry
from rebaser_core.state.change_set import ChangeSetState

NAMED = 20  # functions in one header
NAMED_CHARACTERS = 2000


async def load_functions() -> None:
    """Load plug-ins, unless that was done; they may take their time."""
    if not registry.cache_info().currsize:
        await to_thread.run_sync(registry)


def missing_functions(state: ChangeSetState) -> tuple[str, ...]:
    """Functions of values here that this server has not got, as many as a header should hold."""
    room = NAMED_CHARACTERS
    names: list[str] = []
    for name in sorted(state.cells.unknown_functions(registry().functions)):
        room -= len(name)
        if room < 0 or len(names) == NAMED:
            break
        names.append(name)
    return tuple(names)


def any_available(names: tuple[str, ...]) -> bool:
    """Whether this server has got one of them."""
    return any(name in registry().functions for name in names)
