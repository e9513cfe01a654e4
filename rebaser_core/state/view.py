"""Defines views of a state. Other threads can read the arrays of a view while further commits are folded."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from rebaser_core.state.overlay import Cell, Cells
from rebaser_core.updates import Recompute

T = TypeVar("T")


class View:
    """A `ChangeSetState` as it was when the view was opened.

    `columns` contains all values and does not change until the view is closed. Other threads must read `columns` in a
    function that they pass to `run`. If such a function is still running when the view is closed, the columns do not
    change until it ends.
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
        self._users: list[None] = []  # one item for each thread that is executing `run`; `append` and `pop` are atomic
        self._pin = [None]  # only one thread can pop this item, and that thread unpins the columns

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the view, so that its columns may change. The other methods must not be called afterwards."""
        self._open = False
        self._unpin_if_unused()

    def _unpin_if_unused(self) -> None:
        if self._open or self._users:
            return
        with suppress(IndexError):
            self._pin.pop()
            self._cells.pins -= 1

    def run(self, function: Callable[..., T], *args: Any) -> T:
        """Return the result of `function(*args)`. The columns do not change while `function` runs. Raise `RuntimeError`
        if the view is closed."""
        self._users.append(None)
        try:
            # This check must come after `append`, because `close` clears `_open` first and then checks `_users`.
            if not self._open:
                raise RuntimeError("the view is closed; open a new one")
            return function(*args)
        finally:
            self._users.pop()
            self._unpin_if_unused()

    def cell(self, id_: str) -> Cell | None:
        """Return the cell of `id_`, or None if `id_` does not exist in this view."""
        return self._cells.base_cell(id_)

    def ids(self) -> list[str]:
        """Return the ids of all values in this view."""
        ids = self.columns.ids
        return [ids[row] for row in self.columns.rows().tolist()]
