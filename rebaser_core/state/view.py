"""Views: a state at one moment. Other threads can read the arrays of a view while commits are folded."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from rebaser_core.state.overlay import Cell, Cells
from rebaser_core.updates import Recompute

T = TypeVar("T")


class View:
    """A `ChangeSetState` at the moment when the view was opened.

    `columns` holds all of its values, and does not change until the view is closed. Other threads read it within `run`.
    A thread that still runs when the view is closed keeps the columns pinned until it ends.
    """

    def __init__(
        self, cells: Cells, sequence: int, covers: int, roots: dict[str, int], recompute: dict[Recompute, int]
    ) -> None:
        cells.pins += 1
        self.sequence = sequence
        self.covers = covers
        self.roots = roots
        self.recompute = recompute
        self.columns = cells.columns
        self._cells = cells
        self._open = True
        self._users: list[None] = []  # threads within `run`; appending and popping are atomic
        self._pin = [None]  # the thread that pops the element unpins the columns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the columns. The results of the other methods are undefined afterwards."""
        self._open = False
        self._unpin_if_unused()

    def _unpin_if_unused(self) -> None:
        if self._open or self._users:
            return
        with suppress(IndexError):
            self._pin.pop()
            self._cells.pins -= 1

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call `function(*args)` and pin the columns until it returns. Raises `RuntimeError` if the view is closed."""
        self._users.append(None)
        try:
            # checked only after the append above: `close` clears the flag first, then checks whether `_users` is empty
            if not self._open:
                raise RuntimeError("the view is closed")
            return function(*args)
        finally:
            self._users.pop()
            self._unpin_if_unused()

    def cell(self, id_: str) -> Cell | None:
        """Return the cell of `id_`, or None."""
        return self._cells.base_cell(id_)

    def ids(self) -> list[str]:
        """Return every id that exists in this view."""
        ids = self.columns.ids
        return [ids[row] for row in self.columns.rows().tolist()]
