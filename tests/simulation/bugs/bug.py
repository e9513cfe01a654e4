"""The type of a planted bug: which text of which module is replaced by which."""

from dataclasses import dataclass

from tests.simulation.planting import Change


@dataclass(frozen=True)
class Bug:
    """A planted bug, which `seed` finds in `mode`."""

    name: str
    mode: str
    seed: int
    changes: tuple[Change, ...]


def bug(name: str, mode: str, seed: int, module: str, old: str, new: str, *more: Change) -> Bug:
    return Bug(name, mode, seed, ((module, old, new), *more))
