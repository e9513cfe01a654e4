"""Ids by their segments (the parts between slashes): which of many match a pattern.

Invariant: takes time for what matches, and for what the segments before the first `**` let through.
"""

from collections.abc import Iterable, Iterator

from rebaser_core.patterns import matcher


class Names:
    """A set of ids. `leaves`: the ids of a folder; `inner`: the folders in a folder. A folder ends with a slash, or is
    empty."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._leaves: dict[str, dict[str, None]] = {}
        self._inner: dict[str, dict[str, None]] = {}
        for id_ in ids:
            self.add(id_)

    def add(self, id_: str) -> None:
        """Put `id_` in; nothing happens if it is."""
        folder = id_[: id_.rfind("/") + 1]
        some = self._leaves.get(folder)
        if some is not None:
            some[id_] = None
            return
        self._leaves[folder] = {id_: None}
        while folder:
            parent = _parent(folder)
            folders = self._inner.get(parent)
            if folders is not None:
                folders[folder] = None
                return
            self._inner[parent] = {folder: None}
            folder = parent

    def remove(self, id_: str) -> None:
        """Take `id_`, which is in, out."""
        folder = id_[: id_.rfind("/") + 1]
        some = self._leaves[folder]
        del some[id_]
        if some:
            return
        del self._leaves[folder]
        while folder and folder not in self._leaves and folder not in self._inner:
            parent = _parent(folder)
            folders = self._inner[parent]
            del folders[folder]
            if folders:
                return
            del self._inner[parent]
            folder = parent

    def matching(self, glob: str) -> list[str]:
        """The ids that match `glob`, in order."""
        head = glob.partition("*")[0]
        at = head.rfind("/") + 1
        folders: Iterable[str] = (glob[:at],)
        *parts, last = glob[at:].split("/")
        match = matcher(glob)
        for part in parts:
            if "**" in part:
                break
            folders = list(self._steps(folders, part))
        else:
            if "**" not in last:
                return sorted(self._ids(folders, last))
        return sorted([id_ for folder in folders for id_ in self._below(folder) if match(id_)])

    def _steps(self, folders: Iterable[str], part: str) -> Iterator[str]:
        """The folders in `folders` whose last segment matches `part`."""
        match = matcher(part)
        for folder in folders:
            if "*" in part:
                cut = len(folder)
                yield from [one for one in self._inner.get(folder, ()) if match(one[cut:-1])]
            elif (one := f"{folder}{part}/") in self._leaves or one in self._inner:
                yield one

    def _ids(self, folders: Iterable[str], last: str) -> Iterator[str]:
        match = matcher(last)
        for folder in folders:
            some = self._leaves.get(folder, {})
            if "*" in last:
                cut = len(folder)
                yield from [id_ for id_ in some if match(id_[cut:])]
            elif (id_ := folder + last) in some:
                yield id_

    def _below(self, folder: str) -> Iterator[str]:
        todo = [folder]
        while todo:
            one = todo.pop()
            yield from self._leaves.get(one, ())
            todo.extend(self._inner.get(one, ()))


def _parent(folder: str) -> str:
    return folder[: folder.rfind("/", 0, -1) + 1]
