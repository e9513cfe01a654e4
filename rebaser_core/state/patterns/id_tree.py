"""Ids by their segments (the parts between slashes): which of many match a pattern.

Invariant: takes time for what matches, and for what the segments before the first `**` let through. Holds no more than
the ids that may match one of the patterns it was told of, as far as their first segments say.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from rebaser_core import thresholds
from rebaser_core.state.patterns.globs import matcher

_Some = dict[str, str | dict[str, None]]  # one as it is: a map of one takes four times as much as its text


class IdTree:
    """A set of ids. `leaves`: the ids of a folder; `inner`: the folders in a folder. A folder ends with a slash, or is
    empty. `heads`: the folders of the first segment that are held, None for all."""

    def __init__(self) -> None:
        self._leaves: _Some = {}
        self._inner: _Some = {}
        self._heads: set[str] | None = set()
        self._selected = 0

    def cover(self, globs: Iterable[str], ids: Callable[[], Iterable[str]]) -> None:
        """Take in those of all `ids` that `globs` may match. `add` has told of each of these as it came."""
        if self._heads is None:
            return
        heads = {head for glob in globs if (head := _head(glob)) not in self._heads}
        if not heads:
            return
        self._selected += 1
        if None in heads or self._selected > thresholds.now.heads:
            known, self._heads = self._heads, None
            self._take_in(id_ for id_ in ids() if id_[: id_.find("/") + 1] not in known)
        else:
            self._heads.update(head for head in heads if head is not None)
            self._take_in(id_ for id_ in ids() if id_[: id_.find("/") + 1] in heads)

    def _holds(self, id_: str) -> bool:
        return self._heads is None or id_[: id_.find("/") + 1] in self._heads

    def add(self, id_: str) -> None:
        """Put `id_` in, if any pattern may match it; nothing happens if it is."""
        if self._holds(id_):
            self._take_in((id_,))

    def _take_in(self, ids: Iterable[str]) -> None:
        leaves = self._leaves
        for id_ in ids:
            folder = id_[: id_.rfind("/") + 1]
            some = leaves.get(folder)
            if type(some) is dict:
                some[id_] = None
                continue
            new = _put(leaves, folder, id_)
            while new and folder:
                parent = _parent(folder)
                new = _put(self._inner, parent, folder)
                folder = parent

    def remove(self, id_: str) -> None:
        """Take `id_`, which was put in, out."""
        if not self._holds(id_):
            return
        folder = id_[: id_.rfind("/") + 1]
        last = _take(self._leaves, folder, id_)
        while last and folder and folder not in self._leaves and folder not in self._inner:
            parent = _parent(folder)
            last = _take(self._inner, parent, folder)
            folder = parent

    def matching(self, glob: str) -> list[str]:
        """The ids that match `glob`, which is covered, in order."""
        at = glob.partition("*")[0].rfind("/") + 1
        folders: Iterable[str] = (glob[:at],)
        *parts, last = glob[at:].split("/")
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
        """The folders in `folders` whose last segment matches `part`."""
        for folder in folders:
            if part == "*":
                yield from _all(self._inner, folder)
            elif "*" in part:
                cut, match = len(folder), matcher(part)
                yield from [one for one in _all(self._inner, folder) if match(one[cut:-1])]
            elif (one := f"{folder}{part}/") in self._leaves or one in self._inner:
                yield one

    def _ids(self, folders: Iterable[str], last: str) -> Iterator[str]:
        for folder in folders:
            some = _all(self._leaves, folder)
            if last == "*":
                yield from some
            elif "*" in last:
                cut, match = len(folder), matcher(last)
                yield from [id_ for id_ in some if match(id_[cut:])]
            elif (id_ := folder + last) in some:
                yield id_

    def _below(self, folder: str) -> Iterator[str]:
        todo = [folder]
        while todo:
            one = todo.pop()
            yield from _all(self._leaves, one)
            todo.extend(_all(self._inner, one))


def _all(places: _Some, folder: str) -> Collection[str]:
    some = places.get(folder, ())
    return (some,) if type(some) is str else some


def _put(places: _Some, folder: str, one: str) -> bool:
    """Put `one` into a folder. Whether it is the first there."""
    some = places.get(folder)
    if some is None:
        places[folder] = one
        return True
    if type(some) is dict:
        some[one] = None
    elif some != one:
        places[folder] = {some: None, one: None}  # type: ignore[dict-item] # it is text
    return False


def _take(places: _Some, folder: str, one: str) -> bool:
    """Take `one`, which is there, out of a folder. Whether it was the last."""
    some = places[folder]
    if type(some) is dict:
        del some[one]
        if some:
            return False
    del places[folder]
    return True


def _parent(folder: str) -> str:
    return folder[: folder.rfind("/", 0, -1) + 1]


def _head(glob: str) -> str | None:
    """The folder of the first segment of all that `glob` matches; None if that may be any."""
    before, run, _ = glob.partition("*")
    at = before.find("/") + 1
    return before[:at] if at or not run or not ("/" in glob or "**" in glob) else None
