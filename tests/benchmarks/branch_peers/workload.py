"""The values and edits, which are the same for all sides, and the steps that each side implements.

A change set of n values has the ids `v/0` to `v/(n-1)`. No value is derived, because the other sides cannot derive
values. A side may store definitions in any form; sides that store text store their JSON.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Edits: TypeAlias = Mapping[int, int]
"""The new value of each edited id, by number."""

STRIDE = 7919  # a prime, so that edits are spread over all values


def text_of(value: int) -> str:
    """Return the text that a side stores for a value."""
    return json.dumps({"op": "set", "value": value})


def texts(count: int) -> Iterator[tuple[int, str]]:
    """Yield the initial values as texts, by number."""
    for number in range(count):
        yield number, text_of(number)


@dataclass(frozen=True, slots=True)
class Case:
    """A branch and its target each edit `edits` of `values`. Both edit `shared` of these, to different values."""

    values: int
    edits: int
    shared: int

    @property
    def fits(self) -> bool:
        return 4 * self.edits <= self.values

    def both(self, turn: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return the edits of the branch and of the target. Each turn has other values."""
        spread = [STRIDE * place % self.values for place in range(2 * self.edits)]
        ours, theirs = spread[: self.edits], spread[self.edits :]
        theirs = ours[: self.shared] + theirs[self.shared :]
        return dict.fromkeys(ours, 10**9 + turn), dict.fromkeys(theirs, -(10**9) - turn)


class Side(Protocol):
    """The steps that are measured. Each call is one transaction of the side, with its default durability."""

    version: str

    async def load(self, count: int) -> None: ...

    async def branch(self, name: str) -> None:
        """Create the branch `name` from the present state of main."""

    async def edit(self, name: str, edits: Edits) -> None:
        """Make `edits` in one commit on a branch or on main."""

    async def diff(self, name: str) -> int:
        """Read the changes of the branch since its base, with both definitions, and return their number."""

    async def merge(self, name: str) -> int:
        """Merge the branch into main, and return the number of conflicts that prevented this."""

    async def conflicts(self, name: str) -> int:
        """Read the conflicts that `merge` found, with all definitions, and return their number."""

    async def revert(self) -> None:
        """Revert the newest merge."""

    async def position(self) -> Any:
        """Return the position of main."""

    async def read(self, number: int, at: Any) -> int:
        """Return a value of main as of a position."""

    async def blame(self, number: int) -> object:
        """Find who last defined a value of main."""

    async def log(self, number: int) -> int:
        """Read the history of a value of main, and return the number of commits that defined it."""

    async def collect(self) -> None:
        """Collect garbage."""

    async def size(self) -> int:
        """Return the number of stored bytes."""
