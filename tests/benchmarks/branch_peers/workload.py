"""The same values and edits for all sides, and what each side has to be able to do with them.

A change set of n values has the ids `v/0` to `v/(n-1)`. None of them is derived, because no other side derives values.
A side stores a definition as it likes; those of texts store its JSON.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Edits: TypeAlias = Mapping[int, int]
"""The new value of each edited id, by number."""

STRIDE = 7919  # a prime, so that edits are spread over all values


def text_of(value: int) -> str:
    """What a side of texts stores for a value."""
    return json.dumps({"op": "set", "value": value})


def texts(count: int) -> Iterator[tuple[int, str]]:
    """The values at first, by number."""
    for number in range(count):
        yield number, text_of(number)


@dataclass(frozen=True, slots=True)
class Case:
    """A branch and its target both edit `edits` of `values`, `shared` of which both edit, to different values."""

    values: int
    edits: int
    shared: int

    @property
    def fits(self) -> bool:
        return 4 * self.edits <= self.values

    def both(self, turn: int) -> tuple[dict[int, int], dict[int, int]]:
        """The edits of the branch and of the target; those of each turn have other values."""
        spread = [STRIDE * place % self.values for place in range(2 * self.edits)]
        ours, theirs = spread[: self.edits], spread[self.edits :]
        theirs = ours[: self.shared] + theirs[self.shared :]
        return dict.fromkeys(ours, 10**9 + turn), dict.fromkeys(theirs, -(10**9) - turn)


class Side(Protocol):
    """What is measured. Every call is one transaction of the side, as durable as it makes them by default."""

    version: str

    async def load(self, count: int) -> None: ...

    async def branch(self, name: str) -> None:
        """Create the branch `name` of main as it is now."""

    async def edit(self, name: str, edits: Edits) -> None:
        """Make `edits` on a branch, or on main, in one commit."""

    async def diff(self, name: str) -> int:
        """Read what the branch changed since its base, with both definitions; return how many ids."""

    async def merge(self, name: str) -> int:
        """Bring the branch into main; return how many conflicts kept that from happening."""

    async def conflicts(self, name: str) -> int:
        """Read the conflicts that `merge` found, with all definitions; return how many."""

    async def revert(self) -> None:
        """Take the newest merge back."""

    async def position(self) -> Any:
        """Where main is."""

    async def read(self, number: int, at: Any) -> int:
        """Read a value of main as of a position."""

    async def blame(self, number: int) -> object:
        """Find out who last defined a value of main."""

    async def collect(self) -> None:
        """Collect garbage."""

    async def size(self) -> int:
        """How many bytes are stored."""
