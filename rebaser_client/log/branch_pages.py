"""Lists change sets in pages.

Invariant: the first page reads the headers of the newest commit of each change set. Later pages read only what was
stored since the previous page, and show each change set as it is now.
"""

from bisect import bisect_right
from itertools import islice
from typing import TypeAlias

import anyio

from rebaser_client.jetstream import JetStream
from rebaser_client.log.branches import BranchInfo, branch_info, edited_at, with_behind
from rebaser_client.log.heads import Head, HeadReader
from rebaser_core.ids import ChangeSetKey
from rebaser_core.streams.subjects import Subjects

# A change set, and the log sequence of its newest commit with edits.
Described: TypeAlias = tuple[BranchInfo, int]


class BranchPages:
    """The change sets of one workspace, a page at a time."""

    def __init__(self, js: JetStream, subjects: Subjects, workspace: str) -> None:
        self.workspace = workspace
        self._js = js
        self._subjects = subjects
        self._reader = HeadReader(js, subjects, workspace, _described)
        self._found: dict[ChangeSetKey, Described] = {}
        self._lock = anyio.Lock()  # calls of a `HeadReader` must not overlap

    async def page(self, after: str, limit: int | None) -> list[BranchInfo]:
        """Return at most `limit` change sets whose names are greater than `after`, sorted by name.

        Raise `ApiError` if the stream of commits does not exist.
        """
        async with self._lock:
            if not after:  # names that no longer exist are forgotten
                reader = HeadReader(self._js, self._subjects, self.workspace, _described)
                self._reader, self._found = reader, {}
            new = await self._reader.read()
            self._found = new.heads if new.anew else self._found | new.heads
            found = self._found
        names = sorted(key.change_set for key in found)
        infos: list[BranchInfo] = []
        for name in islice(names, bisect_right(names, after), None):
            if len(infos) == limit:
                break
            key = ChangeSetKey(self.workspace, name)
            info, _ = found[key]
            target = None if info.target is None else found.get(key.beside(info.target))
            infos.append(with_behind(info, 0 if target is None else target[1]))
        return infos


def _described(key: ChangeSetKey, head: Head) -> Described:
    return branch_info(key, head), edited_at(head)
