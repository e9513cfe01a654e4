"""Checks whether an id matches a glob pattern, and finds all globs in a set that match an id.

A segment is a part of an id or a glob between slashes.

Invariant: the time of a lookup does not depend on the total number of globs in the set, but only on the number of globs
whose first segments match the id. The time for one glob grows at most with the square of the id's length.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
Matcher: TypeAlias = Callable[[str], object]


@lru_cache(1024)
def matcher(glob: str) -> Matcher:
    """Return a function that takes an id. The function returns a match object if the id matches `glob`, and otherwise
    None.

    In `glob`, `*` matches zero or more characters except `/`. Two or more asterisks also match `/`.
    """
    # In the regular expression, a wildcard matches only up to the first occurrence of the text that follows it. Later
    # occurrences need not be tried, because the next wildcard can match everything up to them. No position is thus
    # tried twice, which keeps a glob with many wildcards from taking exponential time.
    pieces = [[re.escape(text) for text in piece.split("*")] for piece in re.split(r"\*\*+", glob)]
    *_, last = pieces
    bound = [head + "".join([f"(?>[^/]*?{text})" for text in more]) for head, *more in pieces]
    if len(last) > 1:
        bound[-1] = last[0] + "".join([f"(?>[^/]*?{text})" for text in last[1:-1]]) + f"[^/]*{last[-1]}"
    whole = bound[0]
    if len(bound) > 1:
        whole += "".join([f"(?>.*?{part})" for part in bound[1:-1]]) + f".*?{bound[-1]}"
    return re.compile(whole, re.DOTALL).fullmatch


class _Affixes(Generic[T]):
    """A map whose keys are globs with at least one wildcard. Its index consists of the text before the first and the
    text after the last wildcard of each glob."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], int] = {}
        self._entries: dict[tuple[str, str], dict[str, tuple[Matcher | None, T]]] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    @staticmethod
    def _ends(glob: str) -> tuple[str, str]:
        return glob[: glob.index("*")], glob[glob.rindex("*") + 1 :]

    def get(self, glob: str) -> T | None:
        entry = self._entries.get(self._ends(glob), {}).get(glob)
        return None if entry is None else entry[1]

    def put(self, glob: str, target: T) -> None:
        prefix, suffix = ends = self._ends(glob)
        sizes = len(prefix), len(suffix)
        self._sizes[sizes] = self._sizes.get(sizes, 0) + 1
        only_run = set(glob[len(prefix) : len(glob) - len(suffix)]) == {"*"}
        self._entries.setdefault(ends, {})[glob] = None if only_run else matcher(glob), target

    def discard(self, glob: str) -> None:
        prefix, suffix = ends = self._ends(glob)
        sizes = len(prefix), len(suffix)
        self._sizes[sizes] -= 1
        if not self._sizes[sizes]:
            del self._sizes[sizes]
        del self._entries[ends][glob]
        if not self._entries[ends]:
            del self._entries[ends]

    def matching(self, text: str) -> Iterator[T]:
        length = len(text)
        for before, after in self._sizes:
            if before + after <= length:
                entries = self._entries.get((text[:before], text[length - after :]))
                if entries:
                    for match, target in entries.values():
                        if match is None or match(text):
                            yield target


class _Node:
    """A node of a tree in which globs are stored segment by segment.

    `literal` and `starred` map the text of the next segment to its node: `literal` if the segment has no wildcard,
    `starred` if it contains `*`. If the next segment contains `**`, `deep` maps the rest of the glob to the whole glob.
    """

    __slots__ = ("deep", "glob", "literal", "starred")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.starred: _Affixes[_Node] = _Affixes()
        self.deep: _Affixes[str] = _Affixes()
        self.glob: str | None = None  # the glob that ends at this node, if any

    @property
    def empty(self) -> bool:
        return not (self.literal or self.starred or self.deep or self.glob is not None)


class GlobSet:
    """A set of globs in which all globs that match an id can be found."""

    def __init__(self) -> None:
        self._root = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, glob: str) -> None:
        """Add `glob` to the set, if it is not in the set yet."""
        node = self._root
        parts = glob.split("/")
        for depth, part in enumerate(parts):
            if "**" in part:
                rest = "/".join(parts[depth:])
                if node.deep.get(rest) is None:
                    node.deep.put(rest, glob)
                    self._count += 1
                return
            child = node.starred.get(part) if "*" in part else node.literal.get(part)
            if child is None:
                child = _Node()
                if "*" in part:
                    node.starred.put(part, child)
                else:
                    node.literal[part] = child
            node = child
        self._count += node.glob is None
        node.glob = glob

    def remove(self, glob: str) -> None:
        """Remove `glob`, which must be in the set."""
        node: _Node | None = self._root
        path: list[tuple[_Node, str]] = []
        parts = glob.split("/")
        for depth, part in enumerate(parts):
            assert node is not None  # noqa: S101 - the glob was added
            if "**" in part:
                node.deep.discard("/".join(parts[depth:]))
                break
            path.append((node, part))
            node = node.starred.get(part) if "*" in part else node.literal[part]
        else:
            assert node is not None  # noqa: S101 - the glob was added
            node.glob = None
        self._count -= 1
        while path and node is not None and node.empty:
            node, part = path.pop()
            if "*" in part:
                node.starred.discard(part)
            else:
                del node.literal[part]

    def matching(self, id_: str) -> list[str]:
        """Return the globs of the set that match `id_`."""
        found: list[str] = []
        nodes = [self._root]
        start = 0
        for segment in id_.split("/"):
            further: list[_Node] = []
            for node in nodes:
                if node.deep:
                    found.extend(node.deep.matching(id_[start:]))
                child = node.literal.get(segment)
                if child is not None:
                    further.append(child)
                if node.starred:
                    further.extend(node.starred.matching(segment))
            if not further:
                return found
            nodes = further
            start += len(segment) + 1
        found.extend([node.glob for node in nodes if node.glob is not None])
        return found
