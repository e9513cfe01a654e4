"""Notes what an owner reads while it loads a change set, so that `rebaser explain` can tell why this takes long.

Invariant: what is noted has begun and not ended. Code that reads without loading a change set notes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rebaser_core.ids import ChangeSetKey

_CURRENT: ContextVar[list[str] | None] = ContextVar("reading", default=None)


class Loads:
    """The change sets that are being loaded, and what is being read for each."""

    def __init__(self) -> None:
        self._reads: dict[ChangeSetKey, list[str]] = {}

    @contextmanager
    def loading(self, key: ChangeSetKey) -> Iterator[None]:
        """Enter a context that loads `key`."""
        reads = self._reads[key] = []
        token = _CURRENT.set(reads)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            del self._reads[key]

    def of(self, key: ChangeSetKey) -> str:
        """Return what is being read to load `key`; empty if it is not being loaded, or if nothing is being read."""
        return ", ".join(self._reads.get(key, ()))


class reading:  # noqa: N801 - used like a function
    """A context manager that notes that `what` is read, if it is read to load a change set."""

    __slots__ = ("_reads", "_what")

    def __init__(self, what: str) -> None:
        self._reads = _CURRENT.get()
        self._what = what

    def __enter__(self) -> None:
        if self._reads is not None:
            self._reads.append(self._what)

    def __exit__(self, *_: object) -> None:
        if self._reads is not None:
            self._reads.remove(self._what)
