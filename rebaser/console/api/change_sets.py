"""`/change-sets`: a page of the table of all change sets, filtered and sorted."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from rebaser.console.api.overview import URGENCY, by_urgency
from rebaser.console.live.hub import Seen
from rebaser.console.resources import Answer, Console, Given, Resource
from rebaser.console.shapes import activity_object, branch_object
from rebaser_client.admin.fleet import ActiveChangeSet
from rebaser_client.log.branches import BranchInfo
from rebaser_core.record import record

QUIET = len(URGENCY)  # the rank of a change set with nothing to do


@record
class ListedChangeSet:
    """A change set in the table: what it does, if anything, and what its newest commit tells, if it has one."""

    workspace: str
    change_set: str
    active: ActiveChangeSet | None
    info: BranchInfo | None

    @property
    def status(self) -> str:
        return "open" if self.info is None else self.info.status

    @property
    def errors(self) -> int:
        """The number of values in error, as far as the newest commit tells."""
        return 0 if self.info is None else self.info.errors or 0


FILTERS: dict[str, Callable[[ListedChangeSet], bool]] = {
    "open": lambda one: one.status == "open" or one.active is not None,
    "working": lambda one: one.active is not None,
    "waiting": lambda one: one.active is not None and one.active.activity == "waiting",
    "due": lambda one: one.active is not None and (one.active.debt or one.active.update is not None),
    "unreadable": lambda one: one.active is not None and one.active.problem != "",
    "errors": lambda one: one.errors > 0 and one.status == "open",
    "conflicts": lambda one: one.info is not None and one.info.conflicts > 0 and one.status == "open",
    "behind": lambda one: one.info is not None and one.info.behind and one.status == "open",
    "closed": lambda one: one.status not in ("open", "deleted"),
    "all": lambda one: one.status != "deleted" or one.active is not None,
}


def _urgency(one: ListedChangeSet) -> Any:
    if one.active is not None:
        return by_urgency(one.active)
    return QUIET, 0.0, 0, one.workspace, one.change_set


def _recent(one: ListedChangeSet) -> Any:
    committed = 0 if one.info is None else one.info.sequence
    return -max(committed, 0 if one.active is None else one.active.last_commit), one.workspace, one.change_set


SORTS: dict[str, Callable[[ListedChangeSet], Any]] = {
    "name": lambda one: (one.workspace, one.change_set),
    "urgency": _urgency,
    "recent": _recent,
    "queue": lambda one: (0 if one.active is None else -one.active.pending, one.workspace, one.change_set),
    "errors": lambda one: (-one.errors, one.workspace, one.change_set),
    "changes": lambda one: (0 if one.info is None else -one.info.changes, one.workspace, one.change_set),
}


class ListIndex:
    """All change sets of one look: sorted by name, and counted by filter. Pages of all viewers share it."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.rows = sorted(listed(seen), key=SORTS["name"])
        self.counts = counts_of(self.rows)

    def find(self, workspace: str, change_set: str) -> ListedChangeSet | None:
        """Return the change set of this name, if there is one."""
        name = workspace, change_set
        at = bisect_left(self.rows, name, key=SORTS["name"])
        return self.rows[at] if at < len(self.rows) and SORTS["name"](self.rows[at]) == name else None


_newest: list[ListIndex] = []  # the index of the newest look, if a page has needed it


def index_of(seen: Seen) -> ListIndex:
    """Return the index of what was seen."""
    if not _newest or _newest[0].seen is not seen:
        _newest[:] = [ListIndex(seen)]
    return _newest[0]


def counts_of(rows: list[ListedChangeSet]) -> dict[str, int]:
    return {name: sum(map(keep, rows)) for name, keep in FILTERS.items()}


async def read(console: Console, given: Given) -> Answer:
    """Return a page of the change sets that match."""
    offset, limit = given.page()
    seen = await console.hub.seen()
    rows, counts = matching(seen, given)
    return {
        "problem": seen.problem,
        "at": seen.view.at,
        "total": seen.view.total,
        "matching": len(rows),
        "counts": counts,
        "offset": offset,
        "limit": limit,
        "rows": [row_object(one) for one in rows[offset : offset + limit]],
    }


def matching(seen: Seen, given: Given) -> tuple[list[ListedChangeSet], dict[str, int]]:
    """Return the change sets that match, in the order that was asked for, and the number of those in each filter."""
    words, state = given.text("q").lower().split(), given.choice("state", tuple(FILTERS))
    sort, index = given.choice("sort", tuple(SORTS)), index_of(seen)
    rows = [one for one in index.rows if _matches(one, words)] if words else index.rows
    counts = counts_of(rows) if words else index.counts
    rows = list(filter(FILTERS[state], rows))
    if sort != "name":
        rows.sort(key=SORTS[sort])
    return rows, counts


def listed(seen: Seen) -> list[ListedChangeSet]:
    """Return all change sets, deleted ones too, in no particular order."""
    active = {(row.workspace, row.change_set): row for row in seen.view.change_sets}
    listed = [
        ListedChangeSet(info.workspace, info.change_set, active.pop((info.workspace, info.change_set), None), info)
        for info in seen.change_sets
    ]
    return listed + [ListedChangeSet(*name, row, None) for name, row in active.items()]


def _matches(one: ListedChangeSet, words: list[str]) -> bool:
    name = f"{one.workspace}/{one.change_set}".lower()
    return all(word in name for word in words)


def row_object(one: ListedChangeSet) -> Answer:
    """Return a change set as a row of the table."""
    quiet = ActiveChangeSet(one.workspace, one.change_set)
    found = activity_object(one.active or quiet) | {"status": one.status, "target": None}
    if one.active is None:
        found["state"] = "quiet"
    return found if one.info is None else found | branch_object(one.info)


RESOURCES = (Resource("/change-sets", read, live=True, query=("q", "state", "sort", "offset", "limit")),)
