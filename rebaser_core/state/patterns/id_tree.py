"""Finds the ids that match a glob, with a tree of ids whose levels are the parts of the ids between slashes.

Invariant: the time of a search depends on the number of ids that match and, if the glob contains `**`, on the number of
ids that match the part of the glob before the first `**`. The tree contains an id only if a glob that was passed to
`cover` may match the first part of the id.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from rebaser_core import thresholds
from rebaser_core.state.patterns.globs import matcher

_Folders = dict[str, str | dict[str, None]]  # a single member is stored as text, as a dict needs four times the memory


class IdTree:
    """A set of ids in which all ids that match a glob can be found.

    A folder is the part of an id up to and including one of its slashes, or the empty string for the root. `_leaves`
    maps a folder to its ids, and `_inner` maps a folder to its inner folders. The tree contains the ids whose first
    folder is in `_heads`, or all ids if `_heads` is None.
    """

    def __init__(self) -> None:
        self._leaves: _Folders = {}
        self._inner: _Folders = {}
        self._heads: set[str] | None = set()
        self._scans = 0

    def cover(self, globs: Iterable[str], ids: Callable[[], Iterable[str]]) -> None:
        """Make sure that, from now on, the tree contains all ids that may match one of `globs`. `ids` returns all
        existing ids."""
        if self._heads is None:
            return
        heads = {head for glob in globs if (head := _head(glob)) not in self._heads}
        if not heads:
            return
        self._scans += 1
        if None in heads or self._scans > thresholds.now.id_tree_max_partial_scans:
            known, self._heads = self._heads, None
            self._take_in(id_ for id_ in ids() if id_[: id_.find("/") + 1] not in known)
        else:
            self._heads.update(head for head in heads if head is not None)
            self._take_in(id_ for id_ in ids() if id_[: id_.find("/") + 1] in heads)

    def _holds(self, id_: str) -> bool:
        return self._heads is None or id_[: id_.find("/") + 1] in self._heads

    def add(self, id_: str) -> None:
        """Add the new id `id_` if it may match one of the globs that were passed to `cover`."""
        if self._holds(id_):
            self._take_in((id_,))

    def _take_in(self, ids: Iterable[str]) -> None:
        leaves = self._leaves
        for id_ in ids:
            folder = id_[: id_.rfind("/") + 1]
            members = leaves.get(folder)
            if type(members) is dict:
                members[id_] = None
                continue
            new = _put(leaves, folder, id_)
            while new and folder:
                parent = _parent(folder)
                new = _put(self._inner, parent, folder)
                folder = parent

    def remove(self, id_: str) -> None:
        """Remove the existing id `id_`."""
        if not self._holds(id_):
            return
        folder = id_[: id_.rfind("/") + 1]
        last = _take(self._leaves, folder, id_)
        while last and folder and folder not in self._leaves and folder not in self._inner:
            parent = _parent(folder)
            last = _take(self._inner, parent, folder)
            folder = parent

    def matching(self, glob: str) -> list[str]:
        """Return the ids that match `glob`, sorted. `glob` must have been passed to `cover`."""
        start = glob.partition("*")[0].rfind("/") + 1
        folders: Iterable[str] = (glob[:start],)
        *parts, last = glob[start:].split("/")
        for part in parts:
            if "**" in part:
                break
            folders = list(self._steps(folders, part))
        else:
            if "**" not in last:
                return sorted(self._ids(folders, last))
        match = matcher(glob)
        return sorted([id_ for folder in folders for id_ in self._below(folder) if match(id_)])

    def _steps(self, folders: Iterable[str], part: str) -> Iterator[str]:
        """Yield the folders directly inside `folders` whose names match `part`."""
        for folder in folders:
            if part == "*":
                yield from _all(self._inner, folder)
            elif "*" in part:
                cut, match = len(folder), matcher(part)
                yield from [inner for inner in _all(self._inner, folder) if match(inner[cut:-1])]
            elif (inner := f"{folder}{part}/") in self._leaves or inner in self._inner:
                yield inner

    def _ids(self, folders: Iterable[str], last: str) -> Iterator[str]:
        """Yield the ids directly inside `folders` whose last part matches `last`."""
        for folder in folders:
            ids = _all(self._leaves, folder)
            if last == "*":
                yield from ids
            elif "*" in last:
                cut, match = len(folder), matcher(last)
                yield from [id_ for id_ in ids if match(id_[cut:])]
            elif (id_ := folder + last) in ids:
                yield id_

    def _below(self, folder: str) -> Iterator[str]:
        todo = [folder]
        while todo:
            inner = todo.pop()
            yield from _all(self._leaves, inner)
            todo.extend(_all(self._inner, inner))


def _all(folders: _Folders, folder: str) -> Collection[str]:
    members = folders.get(folder, ())
    return (members,) if type(members) is str else members


def _put(folders: _Folders, folder: str, member: str) -> bool:
    """Add `member` to `folder`. Return whether it is the only member."""
    members = folders.get(folder)
    if members is None:
        folders[folder] = member
        return True
    if type(members) is dict:
        members[member] = None
    elif members != member:
        folders[folder] = {members: None, member: None}  # type: ignore[dict-item] # `members` is text
    return False


def _take(folders: _Folders, folder: str, member: str) -> bool:
    """Remove `member`, which must be in `folder`. Return whether it was the last member."""
    members = folders[folder]
    if type(members) is dict:
        del members[member]
        if members:
            return False
    del folders[folder]
    return True


def _parent(folder: str) -> str:
    return folder[: folder.rfind("/", 0, -1) + 1]


def _head(glob: str) -> str | None:
    """Return the first folder that all ids matching `glob` have in common, or None if their first folders may
    differ."""
    literal, run, _ = glob.partition("*")
    end = literal.find("/") + 1
    return literal[:end] if end or not run or not ("/" in glob or "**" in glob) else None
